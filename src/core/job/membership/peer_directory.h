// The directory holds what each rank of a job has published about itself. From it, all ranks draw
// the same conclusions: which ranks are near each other, and the cost of the links between them.
//
// The digest (job_digest.h) has a little data on every rank. The offers of a rank describe how to
// reach its transports. In a small job the offers of all ranks are known; in a large job, only
// those of the ranks that have exchanged profiles with this rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/job/membership/job_digest.h"
#include "src/core/job/membership/rank_placement.h"
#include "src/core/job/membership/rank_profile.h"
#include "src/core/job/membership/transport_costs.h"
#include "topology/links/link_model.h"
#include "topology/machine/host_links.h"
#include "topology/machine/own_nics.h"

namespace hetcomm {

// A device of a rank, by its number in the rank's context.
struct RankDevice {
  int rank = 0;
  size_t device = 0;  // 0: host memory
};

class PeerDirectory {
 public:
  explicit PeerDirectory(int size) : offers_(static_cast<size_t>(size)) {}

  // Call this once, after all ranks have introduced themselves. |digest| describes size() ranks.
  void set(JobDigest digest);
  void set_offers(int rank, std::vector<PeerInfo::Offer> offers);
  // Call this after set() if rank 0 has a model of the links between hosts. |model| must include
  // the hosts of all ranks.
  void set_link_model(topology::LinkModel model);
  // Call this after set() if rank 0 has no model. Makes a model from what all ranks have reported
  // about their hosts, unless the job is too large for a model.
  void estimate_link_model();
  // Returns the link model; null if there is none.
  const topology::LinkModel* link_model() const { return model_ ? &*model_ : nullptr; }
  // Returns the reason why there is no link model.
  const Status& link_model_status() const { return model_status_; }
  // Returns a hash of the model; 0 if there is none.
  uint64_t link_model_hash() const { return model_hash_; }
  // Returns the link model's route between devices of two ranks. The model must exist. The route
  // uses the first NIC for each device's data, or the host's first NIC if the model does not
  // include that NIC. Returns an empty route if there is none.
  topology::Route route(const RankDevice& from, const RankDevice& to) const;
  // Returns one end of a route of the link model, which must exist. The names live as long as the
  // directory.
  topology::LinkEnd link_end(const RankDevice& of) const {
    return {model_host(of.rank).label, model_nic(of, 0)};
  }
  // Returns the NICs that the devices of the ranks on the rank's host use first.
  const topology::OwnNics& own_nics(int rank) const;
  // Returns the cost of the link model's route from rank |from|, over its NIC |nic|, to rank |to|.
  // Returns nothing if the model has no such route, as within a host. |nic| limits the rate if the
  // model includes it. Otherwise a NIC of |from|'s host limits the rate only if the host has no
  // other. A NIC of |to|'s host limits the rate only if that host has no other.
  std::optional<LinkCost> way_to(int to, int from, std::string_view nic) const;
  // Returns the number of devices in the rank's context.
  size_t device_count(int rank) const { return class_of(rank).device_count; }
  // Returns a readable line about the model's route and its clusters. Empty without a model.
  std::string explain_link(int from, int to) const;

  int size() const { return static_cast<int>(offers_.size()); }
  // Returns whether the offers of |rank| are known.
  bool knows(int rank) const { return offers_[static_cast<size_t>(rank)] != nullptr; }
  // Returns the offers in the order of the rank's transports. Empty if they are not known.
  const std::vector<PeerInfo::Offer>& offers(int rank) const;
  const RankClass& class_of(int rank) const {
    return digest_.classes[digest_.class_of[static_cast<size_t>(rank)]];
  }
  const std::string& host_label(int rank) const {
    return digest_.labels[digest_.label_of[static_cast<size_t>(rank)]];
  }
  // Returns the cluster that the rank has declared. Empty if it has declared none.
  const std::string& cluster(int rank) const {
    return digest_.clusters[digest_.cluster_of[static_cast<size_t>(rank)]];
  }
  const JobDigest& digest() const { return digest_; }
  // Returns the number of ranks, |rank| included, that report the same host as |rank|.
  int64_t ranks_beside(int rank) const;
  // Returns whether both ranks report the same host.
  bool share_host(int one, int other) const { return host(one) == host(other); }
  // Returns whether both ranks report the same host and cluster.
  bool are_near(int one, int other) const;
  // Returns which of |ranks| are near each other and the costs of their links. Equal on all ranks.
  RankPlacement placement(const std::vector<int>& ranks) const;

 private:
  void divide_nics();
  uint32_t host(int rank) const { return digest_.host_of[static_cast<size_t>(rank)]; }
  // Returns whether transports of |kind| stay inside a host.
  bool is_within(std::string_view kind) const;
  LinkCost link_between(int one, int other) const;
  LinkCost transport_link_between(int one, int other) const;
  LinkCost estimated_link_between(int one, int other) const;
  uint64_t rails_bytes_per_s(int one, int other) const;
  const topology::HostLinks& said_by(int rank) const;
  const topology::LinkHost& model_host(int rank) const;
  std::string_view model_nic(const RankDevice& of, size_t position) const;

  JobDigest digest_;
  std::vector<std::unique_ptr<const std::vector<PeerInfo::Offer>>> offers_;  // null: unknown
  TransportCosts links_;
  std::vector<topology::OwnNics> own_nics_;  // the different ones
  std::vector<size_t> division_of_;          // by rank: index in |own_nics_|
  // The different reports of ranks on their hosts' links, without the NICs that their devices leave
  // to other devices.
  std::vector<topology::HostLinks> said_;
  std::vector<size_t> said_of_;  // by rank: index in |said_|
  std::optional<topology::LinkModel> model_;
  bool is_estimate_ = false;      // the model is an estimate, not measured
  std::vector<int> model_hosts_;  // by rank: index of its host in the model
  Status model_status_;
  uint64_t model_hash_ = 0;
};

}  // namespace hetcomm
