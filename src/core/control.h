// The control plane of a mesh: who is alive, who left, what was aborted. It carries no user data.
//
// Every rank keeps control connections to its neighbours in a sparse graph (ranks at distance 1 and
// about sqrt(n), both ways), made with the communicator; it stays connected when any single rank
// dies. To a peer that this rank exchanges messages with, one more is made on first use, so that a
// silent pair is watched too. The kernel's keepalive acknowledges them, so a stopped or computing
// process is alive; because nothing else travels on them they never fill up.
//
//   end of stream, error, keepalive failure without a goodbye  ->  the peer is lost; published to
//   all by flooding goodbye                                                    ->  the peer left;
//   published the same way
//
// Each fact is forwarded once by each rank, so a flood ends. All calls under the baton.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/bytes.h"
#include "src/base/config.h"
#include "src/base/log.h"
#include "src/base/status.h"
#include "src/net/socket.h"

namespace hetcomm {

// Upcalls come from the poller or tick(), never from inside a call of the handler's on the plane.
class ControlHandler {
 public:
  virtual void on_peer_lost(int rank, const Status& why) = 0;
  virtual void on_peer_left(int rank) = 0;
  // The others hold this rank for lost, |why|: it cannot go on.
  virtual void on_declared_lost(const Status& why) = 0;
  // |origin|, a member, has aborted |communicator|. Ids name a communicator only together with a
  // member: groups of ranks that have nothing in common may have chosen the same.
  virtual void on_abort(int origin, uint16_t communicator, const std::string& reason) = 0;
  // The collective operations of |communicator| have failed on |origin|, a member.
  virtual void on_collectives_failed(int origin, uint16_t communicator, const Status& why) = 0;
  // |rank| tells this one of a collective operation that it has called.
  virtual void on_call(int rank, uint16_t communicator, ConstByteSpan note) = 0;
  // |rank| has something to send and asks this rank, the lower one, to connect.
  virtual void on_knock(int rank, uint32_t lost) = 0;
  // |rank|, the lower one, cannot connect to this rank.
  virtual void on_refused(int rank, const std::string& why) = 0;
  // |rank| will not exchange messages with this rank any more.
  virtual void on_given_up(int rank, const std::string& why) = 0;

 protected:
  ~ControlHandler() = default;
};

class ControlPlane final : private AcceptHandler {
 public:
  struct Setup {
    int rank;
    int size;
    Credentials credentials;
    uint64_t detection_ns;
    uint64_t answer_ns;  // how long a peer that was reached may compute before it answers
    Address route{};     // of this host, leads to the other ranks; none where that is not known
  };
  static Result<std::unique_ptr<ControlPlane>> create(Poller& poller, Log& log,
                                                      const Config& config, Setup setup,
                                                      ControlHandler& handler);
  ~ControlPlane();

  // Where peers find this rank's control plane.
  void encode_addresses(ByteWriter& writer) const;
  // Takes connections of ranks that fit |credentials|, and starts the graph. |addresses| by rank.
  Status start(const Credentials& credentials, std::vector<std::vector<Address>> addresses);
  static Result<std::vector<Address>> decode_addresses(ByteReader& reader);
  // Ranks whose graph connection is still missing.
  std::vector<int> missing_neighbours() const;
  // Why a connection to this rank was dropped last, for a rank that waits in vain; ok if none was.
  Status last_rejection() const;

  // Makes sure that |rank| is watched.
  void watch(int rank);
  void knock(int rank, uint32_t lost) { send(rank, Frame{FrameType::kKnock, rank, lost, {}}); }
  void refuse(int rank, std::string_view why);
  void give_up(int rank, std::string_view why);
  void publish_abort(uint16_t communicator, std::string_view reason);
  void publish_collectives_failed(uint16_t communicator, const Status& why);
  void tell_call(int rank, uint16_t communicator, ConstByteSpan note);
  // Tells everybody that this rank leaves. Afterwards upcalls are no longer made.
  void say_goodbye();

  void tick(uint64_t now_ns);
  uint64_t next_timer_ns() const;

 private:
  enum class FrameType : uint8_t {
    kLost = 1,
    kLeft,
    kAbort,
    kKnock,
    kRefused,
    kGivenUp,
    kCollectivesFailed,
    kCall
  };
  struct Frame {
    FrameType type;
    int32_t rank;       // about whom, or from whom
    uint32_t argument;  // communicator; kCollectivesFailed: with the code, negated, above
    std::string text;
  };
  class Link;
  struct Peer;
  ControlPlane(Poller& poller, Log& log, Setup setup, ControlHandler& handler);

  void on_accept(StreamSocket socket, const Hello& peer) override;
  void connect(int rank);
  bool has_link(const Peer& peer) const;
  void send(int rank, Frame frame);
  void flood(const Frame& frame, const Link* except);
  void handle(Link& from, const Frame& frame);
  void link_up(Link& link);
  void link_down(Link& link, const Status& why);
  void declare_lost(int rank, const Status& why, const Link* from);
  void note_left(int rank, const Link* from);
  bool note_abort(int32_t origin, uint16_t communicator);
  bool note_failed(int32_t origin, uint16_t communicator);
  static std::vector<std::byte> encode(const Frame& frame);
  std::vector<int> neighbours() const;

  Poller& poller_;
  Log& log_;
  Setup setup_;
  ControlHandler& handler_;
  std::shared_ptr<const TlsContext> tls_;  // null: off
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
  std::vector<std::vector<Address>> addresses_;
  std::vector<Peer> peers_;
  std::vector<std::pair<int32_t, uint16_t>> aborted_;  // origin, communicator
  std::vector<std::pair<int32_t, uint16_t>> failed_;   // the same, of their collective operations
  std::vector<std::unique_ptr<Link>> garbage_;         // ended inside their own upcall
  std::vector<int> early_watches_;                     // asked for before start()
  std::vector<Link*> connecting_;
  std::vector<Link*> broken_;  // found while writing, to be ended by tick()
  bool closing_ = false;
};

}  // namespace hetcomm
