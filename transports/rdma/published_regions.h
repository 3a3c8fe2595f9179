// Regions that this process has published on one transport. Each has its own memory region on the
// NIC, which is destroyed with it.
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
  // Removes a region. After the return no peer can reach it. If the device does not release it, the
  // port is broken.
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
