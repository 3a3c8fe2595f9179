// After the handshake, a store and its clients exchange frames: a 32-bit length and a body, little
// endian. A client sends one request at a time, and each request gets one reply. The decoders treat
// input as hostile.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/bootstrap/rank_group.h"
#include "src/net/credentials.h"

namespace hetcomm {

inline constexpr size_t kMaxStoreKey = 256;
inline constexpr size_t kMaxStoreValue = 64 * 1024;
inline constexpr int32_t kMaxStoreRanks = 1 << 16;
inline constexpr size_t kFrameHeaderBytes = 4;
// Largest body of a request: fixed fields, key and value.
inline constexpr size_t kMaxRequestBytes = 64 + kMaxStoreKey + kMaxStoreValue;
inline constexpr size_t kMaxReplyText = 4096;

// A process that connects to the store claims a rank and presents a ticket (Hello::extra), a random
// number that it draws for each bootstrap. The store recognizes the process by it later. On each
// proved connection the store first sends a greeting: its id, or the reason why it does not serve
// this client.
using StoreTicket = std::array<std::byte, 16>;
// The random id of a store. A client that reconnects recognizes the store by it.
using StoreId = std::array<std::byte, 16>;

enum class StoreOperation : uint8_t {
  kPut = 1,
  kGet = 2,
  kGather = 3,
  kJobKey = 4,
  kSurvivors = 5,
  kBroadcast = 6  // a gather that returns only the first member's value
};

// An exchange takes place among all ranks or within groups of them. Ranks that disagree on the form
// of a scope would wait for each other.
enum class ExchangeForm : uint8_t { kWhole = 0, kGroups = 1 };

// The ranks that exchange values.
struct Members {
  RankGroup group;
  int ranks = 0;  // number of ranks in the job
  ExchangeForm form = ExchangeForm::kWhole;

  static Members all(int ranks) { return {.group = {.count = ranks}, .ranks = ranks}; }
  // Returns the members |group| of a job of |ranks| ranks. Other groups of the job can exchange
  // values in the same scope.
  static Members of(const RankGroup& group, int ranks) {
    return {.group = group, .ranks = ranks, .form = ExchangeForm::kGroups};
  }
};

// Returns the error that |rank| exchanges values of |scope| in |form|, and other ranks in the other
// form.
Status disagreement_on_form(std::string_view rank, std::string_view scope, ExchangeForm form);
// Returns whether |text| is such an error, perhaps one received from another rank.
bool tells_disagreement_on_form(std::string_view text);

// One request of a client. An exchange is a kGather or a kBroadcast.
struct StoreRequest {
  StoreOperation operation = StoreOperation::kGet;
  uint64_t number = 0;      // counts a client's requests; the same in a repetition
  int32_t rank = 0;         // kSurvivors: the rank. Exchange: the rank's index in the group
  int32_t size = 0;         // kSurvivors: number of ranks in the job. Exchange: number of members
  uint64_t timeout_ns = 0;  // kGet, exchange: limit of the reply. kSurvivors: 0 ends the round
  uint64_t limit_ns = 0;    // exchange: the time limit that error texts name; 0: timeout_ns
  int32_t first = 0;        // exchange: the first rank of the group
  int32_t step = 1;         // exchange: the distance between ranks of the group
  int32_t ranks = 0;        // exchange: number of ranks in the job
  ExchangeForm form = ExchangeForm::kWhole;
  std::string key;  // kSurvivors, exchange: the scope
  // kSurvivors: the set of lost ranks. kBroadcast: only the first member has a value.
  std::vector<std::byte> value;

  bool exchanges() const {
    return operation == StoreOperation::kGather || operation == StoreOperation::kBroadcast;
  }
  RankGroup group() const { return {.first = first, .step = step, .count = size}; }
};

// Encodes a set of ranks, one bit per rank.
std::vector<std::byte> encode_ranks(const std::vector<bool>& ranks);
// Returns a set of |size| ranks, or an empty vector if |bytes| has the wrong length.
std::vector<bool> decode_ranks(ConstByteSpan bytes, int32_t size);

// A whole frame, shared by all clients that get the same reply.
using Frame = std::shared_ptr<const std::vector<std::byte>>;

std::vector<std::byte> encode_request(const StoreRequest& request);
// Decodes |body|, which is a frame without its length. Fails with INVALID_ARGUMENT if it is not a
// valid request.
Result<StoreRequest> decode_request(ConstByteSpan body);

Frame encode_success(ConstByteSpan payload);
Frame encode_failure(const Status& status);
// Returns the payload, which points into |body|, or the failure that the store reported. Fails with
// BOOTSTRAP_FAILED if |body| is malformed.
Result<ConstByteSpan> decode_reply(ConstByteSpan body);

}  // namespace hetcomm
