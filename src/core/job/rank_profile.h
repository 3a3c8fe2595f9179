// The bytes by which a rank introduces itself to the other ranks, through the bootstrap.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/job/peer_directory.h"
#include "src/liveness/control_plane.h"
#include "src/net/address.h"

namespace hetcomm {

inline constexpr size_t kMaxClusterName = 63;
inline constexpr size_t kMaxHostLabel = 127;

struct RankProfile {
  bool tls = false;                      // HETCOMM_TLS
  std::array<std::byte, 16> instance{};  // counts if it is rank 0's
  PeerInfo info;
  uint32_t link_model_bytes = 0;  // counts if it is rank 0's: it will hand out a link model
  std::vector<Address> control;   // where its control plane listens
};

// |control|: of this rank, tells its own addresses; null in a job of one rank.
std::vector<std::byte> encode_profile(const RankProfile& own,
                                      const liveness::ControlPlane* control);
// Stands in place of the profile of a rank that cannot take part.
std::vector<std::byte> encode_refusal(const Status& why);
// Fails with the text of a refusal, and where HETCOMM_TLS is not as on |own_rank|, where it is
// |own_tls|: both sides learn of that here at once.
Status decode_profile(ConstByteSpan bytes, int own_rank, bool own_tls, RankProfile* result);

}  // namespace hetcomm
