// Exchanges regions on one connection: requests, maps and unmaps the peer's regions, and gives the
// peer access to this side's regions. mapping.h describes the protocol.
//
// A socket failure ends the exchange. socket_failed() then returns true.
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

// This side's regions that a peer maps, by id. The value is true once the peer has been asked to
// unmap the region.
using SharedRegions = std::unordered_map<uint64_t, bool>;

class RegionExchange {
 public:
  // |own| and |connection| must outlive the exchange. |peer| is the rank at the other end.
  RegionExchange(const PublishedRegions& own, const Connection& connection, int peer, Log& log)
      : own_(own),
        connection_(connection),
        peer_(peer),
        log_(log),
        port_(connection.socket.get()) {}

  // Requests a region of the peer. receive() later calls EndpointHandler::on_mapped.
  void map(const RemoteKey& key, uint64_t length);
  // Receives a limited number of parcels. kPeerLost: the peer has closed the socket.
  // kOutOfResources: this process cannot open more files. With any other failure the peer has
  // violated the protocol.
  Status receive(EndpointHandler& handler);
  // Sends parcels that were queued because the socket was full.
  void flush();
  bool waiting() const { return port_.waiting(); }
  bool socket_failed() const { return socket_failed_; }

  // Requests that the peer unmap this side's region |id|. Returns true if the peer has, or is about
  // to have, a mapping of it.
  bool ask_to_let_go(uint64_t id);
  bool shares_any() const { return !shared_.empty(); }
  // Returns the list of this side's regions that the peer maps, and clears the list.
  SharedRegions take_shared() { return std::exchange(shared_, {}); }
  void forget_shared() { shared_ = {}; }

  // Unmaps all of the peer's regions, and notifies |handler|.
  void unmap_all(EndpointHandler& handler);
  // Unmaps all of the peer's regions without an upcall.
  void drop_mappings() { mappings_.clear(); }

 private:
  // The largest number of parcels that one receive() handles, so that a peer that sends endlessly
  // does not keep this side busy.
  static constexpr int kMaxParcels = 64;
  // The largest number of unanswered requests for one side's regions. The owner may hold a
  // descriptor for each answer that waits because the socket is full.
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
  std::unordered_map<uint64_t, std::shared_ptr<const Mapping>> mappings_;  // the peer's regions
  std::unordered_map<uint64_t, uint64_t> wanted_;     // requests sent but not answered: id, length
  std::deque<std::pair<uint64_t, uint64_t>> to_ask_;  // requests not sent yet: id, length
  SharedRegions shared_;
  std::array<bool, 3> refusals_noted_{};  // indexed by Refusal
};

}  // namespace hetcomm::shm
