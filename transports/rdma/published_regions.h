// PublishedRegions records the regions that this process has published on one transport. Each has
// its own memory region on the NIC. Removing a region destroys its memory region.
#pragma once

#include <vector>

#include "transports/rdma/port.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

class PublishedRegions {
 public:
  explicit PublishedRegions(Port& port) : port_(port) {}
  ~PublishedRegions();
  PublishedRegions(const PublishedRegions&) = delete;
  PublishedRegions& operator=(const PublishedRegions&) = delete;

  Result<RemoteKey> add(const Region& region);
  // Removes a region, so that no peer can access it. If the device does not release the region, the
  // port becomes unusable, which ends all connections.
  void remove(const RemoteKey& key);

 private:
  struct Published {
    RemoteKey key;
    ibv_mr* mr = nullptr;
  };

  Port& port_;
  std::vector<Published> published_;
};

}  // namespace hetcomm::rdma
