// StoreTable holds the store's values, waiting readers and running gathers, and does no I/O. The
// server passes it decoded requests, and it sends replies through a ReplySink. A broadcast is a
// gather whose reply is the first member's value.
//
// An entry in a gather belongs to the connection that waits for the gather. It is removed when that
// connection ends, so a restarted process can join in its place. A gather fails for all its
// members, with the same text, when the first of them times out or when a rank joins twice. Ended
// gathers are remembered, so that a late member gets the reason instead of waiting.
//
// Gathers of several groups may share a scope. If ranks disagree on whether a scope is exchanged by
// groups, all of them receive that error.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/bootstrap/exchange_names.h"
#include "src/bootstrap/store_protocol.h"
#include "src/bootstrap/survivor_rounds.h"

namespace hetcomm {

using ClientId = uint64_t;

class ReplySink {
 public:
  // Sends |frame| to |client|. Must not call back into the table.
  virtual void send_reply(ClientId client, const Frame& frame) = 0;
  // Reports that |client| is about to be sent all values of an exchange. Called before the reply is
  // sent. Must not call back into the table.
  virtual void on_exchanged(ClientId client) = 0;

 protected:
  ~ReplySink() = default;
};

class StoreTable {
 public:
  struct Limits {
    size_t keys = 1 << 16;  // values and running gathers
    size_t bytes = 256u << 20;
    size_t ended = 1 << 15;  // ended gathers that are remembered
  };

  // An update from the store's own process: a key with its new value, or a key to drop if there is
  // no value.
  struct Word {
    std::string key;
    std::optional<std::vector<std::byte>> value;
  };

  StoreTable(const Secret& job_key, ReplySink& sink);
  StoreTable(const Secret& job_key, ReplySink& sink, Limits limits);

  // Applies |word|, an update from the store's own process.
  Status take(Word word);
  // Handles |request|. Returns false if |client| has broken the protocol by sending a request while
  // another is pending, and must be dropped. |name| identifies the client in texts.
  [[nodiscard]] bool handle(ClientId client, const std::string& name, StoreRequest request,
                            uint64_t now_ns);
  void disconnect(ClientId client);
  void expire(uint64_t now_ns);
  uint64_t next_timer_ns() const;
  // Returns texts about the ranks that gathers are still waiting for: one line for each gather
  // after kFirstReportNs, again after twice that time, and so on.
  std::vector<std::string> take_reports(uint64_t now_ns);
  // Sets a hint that is appended to every text about ranks that did not join.
  void set_hint(std::string hint) { hint_ = std::move(hint); }

  static constexpr uint64_t kFirstReportNs = 10'000'000'000;
  // Records that a process at |who|, which claims to be |rank| of the job, was turned away. An
  // exchange that fails because |rank| did not join reports this, with the code of |why| if that is
  // PERMISSION_DENIED or UNSUPPORTED.
  void note_turned_away(int32_t rank, std::string who, Status why);
  // Fails all waiting requests.
  void fail_all(const Status& why);
  void close();

 private:
  struct Entry {
    ClientId client = 0;
    std::string name;
    std::vector<std::byte> value;
  };
  struct Gather {
    std::string scope;
    RankGroup group;
    int32_t ranks = 0;  // number of ranks in the job
    StoreOperation operation = StoreOperation::kGather;
    uint64_t begun_ns = 0;
    uint64_t report_ns = 0;
    std::map<int32_t, Entry> entries;  // by index in the group
  };
  // The state of a scope while one of its gathers is running or remembered.
  struct Scope {
    ExchangeForm form = ExchangeForm::kWhole;
    size_t gathers = 0;    // running or remembered
    std::string conflict;  // not empty: the ranks disagree about the form
  };
  struct Wait {
    std::string key;
    bool in_gather = false;
    int32_t index = 0;      // index of the rank in the gather's group
    uint64_t limit_ns = 0;  // the time limit that error texts name
    uint64_t deadline_ns = 0;
  };

  Status put(std::string key, std::vector<std::byte> value);
  void find_survivors(ClientId client, const StoreRequest& request);
  void get(ClientId client, const StoreRequest& request, uint64_t now_ns);
  void gather(ClientId client, const std::string& who, StoreRequest request, uint64_t now_ns);
  bool agree_on_form(ClientId client, const std::string& who, const StoreRequest& request);
  void start_gather(const std::string& name, const StoreRequest& request, uint64_t now_ns);
  static Status conflict_of(const Gather& gather, const std::string& who,
                            const StoreRequest& request);
  void complete(const std::string& name, const Gather& gather);
  void fail_gather(const std::string& name, const Status& why);
  void end_gather(const std::string& name, std::string why);
  void forget_gather_of(const std::string& scope);
  void start_wait(ClientId client, Wait wait);
  void stop_wait(ClientId client);
  void time_out(ClientId client);
  static std::vector<int> missing_from(const Gather& gather);
  static std::string missing_text(const Gather& gather) {
    return format_ranks(missing_from(gather), gather.ranks);
  }
  std::string turned_away_text(const std::vector<int>& ranks) const;
  bool has_room(size_t keys, size_t bytes) const;
  void refuse(ClientId client, Code code, std::string text);

  const Secret job_key_;
  ReplySink& sink_;
  const Limits limits_;
  std::unordered_map<std::string, std::vector<std::byte>> values_;
  std::unordered_map<std::string, Gather> gathers_;  // by gather_name()
  std::unordered_map<std::string, Scope> scopes_;
  std::unordered_map<std::string, std::set<ClientId>> readers_;
  std::unordered_map<ClientId, Wait> waits_;
  std::set<std::pair<uint64_t, ClientId>> timers_;
  struct Ended {
    std::string scope;
    std::string reason;
  };
  std::unordered_map<std::string, Ended> ended_;  // by gather_name()
  std::deque<std::string> ended_order_;
  size_t bytes_ = 0;
  SurvivorRounds survivors_;
  std::string hint_;
  struct TurnedAway {
    std::string who;
    Status why;
  };
  std::map<int32_t, TurnedAway> turned_away_;
};

}  // namespace hetcomm
