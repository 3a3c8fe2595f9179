// Ranks that are in one job already find that out by offers, to make a communicator over it instead
// of a new job. Each rank tells the others in which jobs it is, as which rank, and by which channel
// it is reached there. From what all have told, every rank chooses the same job, or none. The
// functions are pure.
//
// The exchange may go through a store that others write to: each offer carries a mark that only
// ranks of its job can make, for this exchange and this rank only.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/net/credentials.h"

namespace hetcomm {

struct JobOffer {
  Identity job;
  int32_t rank = 0;           // job rank of the process that offers
  uint32_t channel = 0;       // reaches it there
  std::vector<int32_t> lost;  // ranks of the job that it takes for dead or gone
  bool operator==(const JobOffer&) const = default;
};

inline constexpr size_t kMostJobOffers = 8;  // of one rank
inline constexpr size_t kMostLostRanks = 256;

// An offer of this rank, with the secret of its job.
struct OwnJobOffer {
  JobOffer offer;
  Secret secret;
};

// Encodes the offers that rank |rank| of the communicator tells in |exchange|.
std::vector<std::byte> encode_offers(std::span<const OwnJobOffer> own, std::string_view exchange,
                                     int32_t rank);

struct ChosenJob {
  size_t own = 0;                 // which of this rank's offers
  std::vector<JobOffer> members;  // by rank of the communicator
};
// |all|: the bytes that each rank has told. Chooses the first of rank 0's jobs that all ranks
// offer, each as another one of its ranks, and in which nobody takes one of them for lost; none
// where there is no such job. Fails with kBootstrapFailed where something cannot be read.
Result<std::optional<ChosenJob>> choose_job(std::span<const OwnJobOffer> own,
                                            const std::vector<std::vector<std::byte>>& all,
                                            std::string_view exchange);

}  // namespace hetcomm
