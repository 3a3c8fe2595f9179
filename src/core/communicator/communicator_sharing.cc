// Creates a communicator over a job that all its ranks already share.
#include <array>
#include <memory>

#include "src/core/communicator/communicator.h"
#include "src/core/context/context.h"
#include "src/core/job/membership/job_offer.h"
#include "src/core/job/pending_channel.h"
#include "src/system/random.h"

namespace hetcomm {

// If a rank fails after the ranks have exchanged their offers, creation fails on the other ranks
// too.
Result<std::unique_ptr<Communicator>> Communicator::create_over_known_job(
    Context& context, Bootstrap& bootstrap, const JobOptions& options) {
  std::vector<std::unique_ptr<PendingChannel>> channels;
  std::vector<OwnJobOffer> own;
  for (std::shared_ptr<Job>& job : context.jobs()) {
    if (own.size() == kMaxJobOffers) break;
    if (!job->may_be_shared(options.transports, bootstrap.configured_key())) continue;
    auto pending = std::make_unique<PendingChannel>(std::move(job));
    Job& offered = *pending->job();
    std::optional<JobOffer> offer = offered.offer(pending->open());
    if (!offer) {
      pending->close();
      continue;
    }
    own.push_back({std::move(*offer), offered.secret()});
    channels.push_back(std::move(pending));
  }
  // While the process of rank 0 makes its first communicator, rank 0 has no offer. It then
  // broadcasts no bytes, and no rank waits for offers. Otherwise it broadcasts random bytes, which
  // make the marks in offers valid for this exchange only.
  // The text of the scope is part of the protocol between ranks.
  const std::string scope = fmt::format("{}/epoch {}/known meshes", options.name, options.epoch);
  std::array<std::byte, 16> drawn{};
  HETCOMM_RETURN_IF_ERROR(fill_random(drawn));
  const ConstByteSpan mine = own.empty() ? ConstByteSpan() : ConstByteSpan(drawn);
  auto first = bootstrap.broadcast(scope + "/any", mine, options.deadline_ns);
  if (!first.ok()) return first.status();
  if (first->empty()) {
    for (const auto& channel : channels) channel->close();
    return std::unique_ptr<Communicator>();
  }
  const std::string exchange =
      scope + std::string(reinterpret_cast<const char*>(first->data()), first->size());
  auto digest = exchange_digest(bootstrap, scope, encode_offers(own, exchange, bootstrap.rank()),
                                JobOfferMaker(), options.deadline_ns);
  if (!digest.ok()) return digest.status();
  Result<std::optional<ChosenJob>> found =
      choose_job(own, digest.value(), static_cast<size_t>(bootstrap.size()), exchange);
  if (!found.ok()) return found.status();
  const std::optional<ChosenJob>& chosen = found.value();
  for (size_t i = 0; i < channels.size(); ++i) {
    if (!chosen || i != chosen->own) channels[i]->close();
  }
  if (!chosen) return std::unique_ptr<Communicator>();
  PendingChannel& pending = *channels[chosen->own];
  // The bootstrap's store may still have values of an earlier run.
  const auto rank = static_cast<size_t>(bootstrap.rank());
  const JobOffer& offered = own[chosen->own].offer;
  if (chosen->ranks[rank] != offered.rank || chosen->channels[rank] != offered.channel) {
    return Status(
        Code::kBootstrapFailed,
        "the bootstrap returned another offer than this rank made, perhaps one of an earlier run; "
        "give the communicator another name or epoch");
  }
  std::vector<MemberChannel> members;
  for (size_t member = 0; member < chosen->ranks.size(); ++member) {
    const int32_t known = chosen->ranks[member];
    if (known >= pending.job()->size()) {
      return Status(
          Code::kBootstrapFailed,
          fmt::format("the bootstrap returned an offer of rank {}; the job has ranks 0 to {}",
                      known, pending.job()->size() - 1));
    }
    members.push_back({known, chosen->channels[member]});
  }
  std::unique_ptr<Communicator> made(new Communicator(context, pending.job(), *pending.channel(),
                                                      std::move(members), nullptr, options));
  pending.keep();
  context.log().debug("communicator '{}' uses the connections of an earlier one", options.name);
  return made;
}

}  // namespace hetcomm
