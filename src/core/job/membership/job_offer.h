// Ranks that already share a job find that out by offers, to make a communicator over it instead of
// a new job. Each rank tells the others which jobs it is in, as which rank, and by which channel it
// is reached there. From what all have told, every rank chooses the same job, or none. The
// functions are pure.
//
// The exchange may go through a store that others write to. So each offer carries a mark that only
// ranks of its job can make, for this exchange and this rank only. In a large communicator, a rank
// does not hear all offers, but what JobOfferMaker makes of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/bootstrap/digest_exchange.h"
#include "src/net/credentials.h"

namespace hetcomm {

struct JobOffer {
  Identity job;
  int32_t rank = 0;           // job rank of the process that offers
  uint32_t channel = 0;       // reaches it there
  std::vector<int32_t> lost;  // ranks of the job that it takes for dead or gone
  bool operator==(const JobOffer&) const = default;
};

inline constexpr size_t kMaxJobOffers = 8;  // most offers of one rank
inline constexpr size_t kMaxLostRanks = 256;

// An offer of this rank, with the secret of its job.
struct OwnJobOffer {
  JobOffer offer;
  Secret secret;
};

// Encodes the offers that rank |rank| of the communicator tells in |exchange|.
std::vector<std::byte> encode_offers(std::span<const OwnJobOffer> own, std::string_view exchange,
                                     int32_t rank);

// Puts together which jobs all ranks offer, with a few bytes for each rank. The marks of a job's
// offers become one mark, their exclusive or (Katz and Lindell, Aggregate Message Authentication
// Codes, CT-RSA 2008). A rank that has the secret makes all marks again, and compares. Fails with
// kBootstrapFailed if the offers of a rank cannot be read.
class JobOfferMaker final : public DigestMaker {
 public:
  Result<std::vector<std::byte>> part(
      int first, const std::vector<std::vector<std::byte>>& cards) const override;
  Result<std::vector<std::byte>> digest(
      const std::vector<std::vector<std::byte>>& parts) const override;
};

struct ChosenJob {
  size_t own = 0;  // which of this rank's offers
  // By rank of the communicator.
  std::vector<int32_t> ranks;
  std::vector<uint32_t> channels;
};
// |digest|: the result of JobOfferMaker for the offers of |size| ranks. Chooses the first of rank
// 0's jobs that all ranks offer, each as a different rank, and in which none of them takes another
// for lost; none if there is no such job. Fails with kBootstrapFailed if the digest cannot be read.
Result<std::optional<ChosenJob>> choose_job(std::span<const OwnJobOffer> own, ConstByteSpan digest,
                                            size_t size, std::string_view exchange);

}  // namespace hetcomm
