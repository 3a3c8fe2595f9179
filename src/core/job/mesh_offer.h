// MeshOffer: how ranks that are in one mesh already find that out, to make a communicator over it
// instead of a mesh of their own. Each tells the others in which meshes it is, as which rank, and
// by which channel it is reached there. From what all have told every rank chooses the same mesh,
// or none. Pure.
//
// The exchange may go through a store that others write to: each offer carries a mark that only
// ranks of its mesh can make, for this exchange and this rank only.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/net/credentials.h"

namespace hetcomm {

struct MeshOffer {
  Identity mesh;
  int32_t rank = 0;           // of whoever offers, in that mesh
  uint32_t channel = 0;       // by which it is reached there
  std::vector<int32_t> lost;  // ranks of the mesh that it takes for dead or gone
  bool operator==(const MeshOffer&) const = default;
};

inline constexpr size_t kMostMeshOffers = 8;  // of one rank
inline constexpr size_t kMostLostRanks = 256;

// An offer of this rank, with the secret of its mesh.
struct OwnMeshOffer {
  MeshOffer offer;
  Secret secret;
};

// What rank |rank| of the communicator tells in |exchange|.
std::vector<std::byte> encode_offers(std::span<const OwnMeshOffer> own, std::string_view exchange,
                                     int32_t rank);

struct ChosenMesh {
  size_t own = 0;                  // which of this rank's offers
  std::vector<MeshOffer> members;  // by rank of the communicator
};
// |all|: what each rank has told. The first of rank 0's meshes that all ranks offer, each as
// another one of its ranks, and in which nobody takes one of them for lost; none where there is no
// such. Fails with kBootstrapFailed where something cannot be read.
Result<std::optional<ChosenMesh>> choose_mesh(std::span<const OwnMeshOffer> own,
                                              const std::vector<std::vector<std::byte>>& all,
                                              std::string_view exchange);

}  // namespace hetcomm
