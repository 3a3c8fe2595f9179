// The regions of both sides on one connection: asks for the peer's, maps and unmaps them, and hands
// over this side's. mapping.h has the protocol.
//
// A socket that fails ends the exchange: its other end tells the endpoint what has happened.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>

#include "src/base/status.h"
#include "src/system/log.h"
#include "transports/shm/mapping.h"
#include "transports/shm/setup.h"
#include "transports/transport.h"

namespace hetcomm::shm {

// This side's regions that a peer maps. True: the peer has been asked to unmap it.
using SharedRegions = std::unordered_map<uint64_t, bool>;

class RegionExchange {
 public:
  // |own| and |connection| outlive it. |peer| is the rank at the other end.
  RegionExchange(const PublishedRegions& own, const Connection& connection, int peer, Log& log)
      : own_(own),
        connection_(connection),
        peer_(peer),
        log_(log),
        port_(connection.socket.get()) {}

  // Asks for a region of the peer. EndpointHandler::on_mapped follows from receive().
  void map(const RemoteKey& key, uint64_t length);
  // Takes a bounded number of parcels that have arrived. kPeerLost: the peer has closed the socket.
  // Other failures: the peer has broken the protocol.
  Status receive(EndpointHandler& handler);
  // Sends parcels that were queued because the socket was full.
  void flush();
  bool waiting() const { return port_.waiting(); }
  bool socket_failed() const { return socket_failed_; }

  // True: the peer has, or is about to have, a mapping of this side's region |id|, and is told to
  // unmap it. False: it has none.
  bool ask_to_let_go(uint64_t id);
  bool shares_any() const { return !shared_.empty(); }
  // Returns this side's regions that the peer maps, and forgets them.
  SharedRegions take_shared() { return std::exchange(shared_, {}); }
  void forget_shared() { shared_ = {}; }

  // Unmaps all regions of the peer, and tells |handler|.
  void unmap_all(EndpointHandler& handler);
  // Unmaps without an upcall.
  void drop_mappings() { mappings_.clear(); }

 private:
  // Parcels that are taken at a time, so that a peer that sends endlessly gets no more than its
  // turn.
  static constexpr int kMaxParcels = 64;
  // The most requests for regions of a side that may be unanswered. The owner holds a descriptor
  // for each answer that the peer does not read.
  static constexpr size_t kMaxWanted = 64;

  void ask();
  void send(const Parcel& parcel);
  Status take(const Parcel& parcel, const UniqueFd& file, EndpointHandler& handler);
  Status answer_want(uint64_t id);
  void note_refusal(Refusal refusal);

  const PublishedRegions& own_;
  const Connection& connection_;
  const int peer_;
  Log& log_;
  ParcelPort port_;
  bool socket_failed_ = false;
  std::unordered_map<uint64_t, std::shared_ptr<const Mapping>> mappings_;  // of the peer's regions
  std::unordered_map<uint64_t, uint64_t> wanted_;     // pending requests: id, length
  std::deque<std::pair<uint64_t, uint64_t>> to_ask_;  // waits for fewer requests
  SharedRegions shared_;
  std::array<bool, 3> refusals_noted_{};  // by Refusal
};

}  // namespace hetcomm::shm
