// The directory holds what each rank of a job has published about itself. From it, all ranks draw
// the same conclusions: which ranks are near each other, and what the links between them cost.
//
// The digest (job_digest.h) tells a little of every rank. The offers of a rank say how its
// transports are reached. In a small job the offers of all ranks are known; in a large one, those
// of the ranks that this rank has met.
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

namespace hetcomm {

// A device of a rank, by its number in the rank's context.
struct RankDevice {
  int rank = 0;
  size_t device = 0;  // the memory of the host
};

class PeerDirectory {
 public:
  explicit PeerDirectory(int size) : offers_(static_cast<size_t>(size)) {}

  // Call this once, when all ranks have introduced themselves. |digest| is one of size() ranks.
  void set(JobDigest digest);
  void set_offers(int rank, std::vector<PeerInfo::Offer> offers);
  // Follows set() where rank 0 has a model of the links between hosts. |model| knows the hosts of
  // all ranks.
  void set_link_model(topology::LinkModel model);
  // Follows set() where rank 0 has no model. Makes a model from what all ranks have said of their
  // hosts, unless the job is larger than a model can be.
  void estimate_link_model();
  // Null where there is none.
  const topology::LinkModel* link_model() const { return model_ ? &*model_ : nullptr; }
  // Why there is none.
  const Status& link_model_status() const { return model_status_; }
  // Hash of the model; 0 where there is none.
  uint64_t link_model_hash() const { return model_hash_; }
  // The way between devices of two ranks by the model, which must exist. It goes over the first NIC
  // that the data of each device uses, or over the first one of the host if the model does not know
  // that NIC.
  topology::Route route(const RankDevice& from, const RankDevice& to) const;
  // One end of a way by the model, which must exist. The names live as long as this.
  topology::LinkEnd link_end(const RankDevice& of) const {
    return {model_host(of.rank).label, model_nic(of, 0)};
  }
  // The link model's way to rank |to| over NIC |nic| of rank |from|; nothing where the model has
  // none, as within a host. NICs that it does not know limit nothing, and neither do those
  // of |to| where it has several.
  std::optional<LinkCost> way_to(int to, int from, std::string_view nic) const;
  // The devices of the rank's context.
  size_t device_count(int rank) const { return class_of(rank).device_count; }
  // Lines about that way and its clusters, for people; empty without a model.
  std::string explain_link(int from, int to) const;

  int size() const { return static_cast<int>(offers_.size()); }
  // Whether the offers of |rank| are known.
  bool knows(int rank) const { return offers_[static_cast<size_t>(rank)] != nullptr; }
  // In the order of the rank's transports; none where they are not known.
  const std::vector<PeerInfo::Offer>& offers(int rank) const;
  const RankClass& class_of(int rank) const {
    return digest_.classes[digest_.class_of[static_cast<size_t>(rank)]];
  }
  const std::string& host_label(int rank) const {
    return digest_.labels[digest_.label_of[static_cast<size_t>(rank)]];
  }
  // As declared; empty where it is not.
  const std::string& cluster(int rank) const {
    return digest_.clusters[digest_.cluster_of[static_cast<size_t>(rank)]];
  }
  const JobDigest& digest() const { return digest_; }
  // How many ranks say that they run where |rank| does.
  int64_t ranks_beside(int rank) const;
  // True if two ranks claim to run on one host.
  bool share_host(int one, int other) const { return host(one) == host(other); }
  // True if they are also in one cluster.
  bool are_near(int one, int other) const;
  // Which of |ranks| are near each other, and what their links cost: the same on all ranks.
  RankPlacement placement(const std::vector<int>& ranks) const;

 private:
  uint32_t host(int rank) const { return digest_.host_of[static_cast<size_t>(rank)]; }
  // Whether transports of |kind| stay inside a host.
  bool is_within(std::string_view kind) const;
  LinkCost link_between(int one, int other) const;
  LinkCost transport_link_between(int one, int other) const;
  LinkCost estimated_link_between(int one, int other) const;
  uint64_t rails_bytes_per_s(int one, int other) const;
  const topology::HostLinks& said_by(int rank) const;
  const topology::LinkHost& model_host(int rank) const;
  std::string_view model_nic(const RankDevice& of, size_t place) const;

  JobDigest digest_;
  std::vector<std::unique_ptr<const std::vector<PeerInfo::Offer>>> offers_;  // null: not known
  TransportCosts links_;
  std::vector<topology::HostLinks> said_;  // by index of JobDigest::links
  std::optional<topology::LinkModel> model_;
  bool is_estimate_ = false;      // nobody has measured the model
  std::vector<int> model_hosts_;  // by rank
  Status model_status_;
  uint64_t model_hash_ = 0;
};

}  // namespace hetcomm
