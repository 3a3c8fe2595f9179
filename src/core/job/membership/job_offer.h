// Ranks that already share a job detect this by exchanging offers. They then make a communicator
// over that job instead of making a new job. Each rank sends the others the jobs that it is in,
// with its rank in each and the number of its channel there. From all offers, every rank chooses
// the same job, or none. The functions are pure.
//
// The exchange may use a store to which other parties can write. Therefore each offer carries a
// mark that only ranks of its job can make. The mark is valid only for this exchange and this rank.
// Ranks do not receive the offers themselves, but the digest that JobOfferMaker makes of them.
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
  int32_t rank = 0;           // job rank of the offering process
  uint32_t channel = 0;       // number of the process's channel in the job
  std::vector<int32_t> lost;  // ranks of the job that the process considers lost
  bool operator==(const JobOffer&) const = default;
};

inline constexpr size_t kMaxJobOffers = 8;  // for one rank
inline constexpr size_t kMaxLostRanks = 256;

// An offer of this rank, with the secret of its job.
struct OwnJobOffer {
  JobOffer offer;
  Secret secret;
};

// Encodes the offers that |rank|, a rank of the new communicator, makes in |exchange|.
std::vector<std::byte> encode_offers(std::span<const OwnJobOffer> own, std::string_view exchange,
                                     int32_t rank);

// Combines all ranks' offers into a digest of a few bytes per rank. The marks of a job's offers are
// combined into one mark, their exclusive or (Katz and Lindell, Aggregate Message Authentication
// Codes, CT-RSA 2008). A rank that has the secret recomputes all marks and compares the result.
// Fails with kBootstrapFailed if the offers of a rank are malformed.
class JobOfferMaker final : public DigestMaker {
 public:
  Result<std::vector<std::byte>> part(
      int first, const std::vector<std::vector<std::byte>>& cards) const override;
  Result<std::vector<std::byte>> digest(
      const std::vector<std::vector<std::byte>>& parts) const override;
};

struct ChosenJob {
  size_t own = 0;  // index of the chosen offer among this rank's own
  // Ranks in the job, by rank in the communicator.
  std::vector<int32_t> ranks;
  // Numbers of the ranks' channels, by rank in the communicator.
  std::vector<uint32_t> channels;
};
// Chooses the first of rank 0's jobs that all ranks offer, each as a different rank, and in which
// none of them considers another lost. Skips jobs whose offers carry invalid marks. Returns nothing
// if there is no such job. |digest| is the result of JobOfferMaker for the offers of |size| ranks.
// Fails with kBootstrapFailed if the digest is malformed.
Result<std::optional<ChosenJob>> choose_job(std::span<const OwnJobOffer> own, ConstByteSpan digest,
                                            size_t size, std::string_view exchange);

}  // namespace hetcomm
