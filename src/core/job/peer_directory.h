// The directory holds what each rank of a job has published about itself. All ranks alike conclude
// from it which ranks are near each other, and what the links between them cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/job/rank_placement.h"
#include "src/core/job/transport_costs.h"
#include "src/net/listening_place.h"
#include "topology/link_model.h"
#include "topology/pairing.h"

namespace hetcomm {

// One rank's own word about itself.
struct PeerInfo {
  struct Offer {       // of one transport
    std::string name;  // "rdma", "rdma#1"
    bool within_host = false;
    LinkCost link;
    topology::Port port;
    std::vector<std::byte> contact;

    // The kind of transport: its name without the number.
    std::string_view kind() const { return std::string_view(name).substr(0, name.find('#')); }
  };
  uint64_t incarnation = 0;  // drawn by its process for this job
  HostId host{};             // where it runs, as it says
  std::string cluster;
  std::string host_label;     // of its host, in a link model
  uint32_t credit = 0;        // bytes that it lets each other rank send unasked
  std::vector<Offer> offers;  // in the order of its transports

  bool offers_kind(std::string_view kind) const;
};

class PeerDirectory {
 public:
  explicit PeerDirectory(int size) : peers_(static_cast<size_t>(size)) {}

  void set(int rank, PeerInfo info) { peers_[static_cast<size_t>(rank)] = std::move(info); }
  // Once all ranks are known: agrees on what each transport's links cost.
  void gather_links();
  // Rank 0's model of the links between hosts. It knows the hosts of all ranks.
  void set_link_model(topology::LinkModel model);
  // Null where rank 0 has none.
  const topology::LinkModel* link_model() const { return model_ ? &*model_ : nullptr; }
  // Hash of the model; 0 where there is none.
  uint64_t link_model_hash() const { return model_hash_; }
  // The way from one rank to another by the model, which is there.
  topology::Route route(int from, int to) const;
  // Lines about that way and its clusters, for people; empty without a model.
  std::string explain_link(int from, int to) const;

  int size() const { return static_cast<int>(peers_.size()); }
  const PeerInfo& at(int rank) const { return peers_[static_cast<size_t>(rank)]; }
  std::vector<uint64_t> incarnations() const;
  std::vector<HostId> hosts() const;
  // How many ranks say that they run where |rank| does.
  int64_t ranks_beside(int rank) const;
  // True if two ranks claim to run on one host, in one cluster.
  bool are_near(int one, int other) const;
  // Which of |ranks| are near each other, and what their links cost: the same on all ranks.
  RankPlacement placement(const std::vector<int>& ranks) const;

 private:
  LinkCost link_between(int one, int other) const;
  LinkCost transport_link_between(int one, int other) const;
  int model_cluster(int rank) const;

  std::vector<PeerInfo> peers_;
  TransportCosts links_;
  std::optional<topology::LinkModel> model_;
  uint64_t model_hash_ = 0;
};

}  // namespace hetcomm
