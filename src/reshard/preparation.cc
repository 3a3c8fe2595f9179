#include "src/reshard/preparation.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "reshard/memory_order.h"
#include "src/base/mix64.h"

namespace hetcomm::reshard {
namespace {

constexpr uint64_t kLandingBytes = 64u << 20;  // default of OrderOptions::landing_bytes

// Hashes a sequence of words.
class Mixer {
 public:
  void add(uint64_t word) { state_ = mix64(state_, word); }
  void add(const Layout& layout) {
    add(layout.shape.size());
    for (const uint64_t extent : layout.shape) add(extent);
    add(layout.padded_shape.size());
    for (const uint64_t extent : layout.padded_shape) add(extent);
    add(uint64_t{layout.divisor} << 32 | layout.terms);
    add(layout.parts.size());
    for (const Part& part : layout.parts) {
      add(static_cast<uint64_t>(part.rank));
      for (size_t d = 0; d < part.box.dimensions; ++d) {
        add(part.box.begin[d]);
        add(part.box.end[d]);
      }
      add(uint64_t{part.copy} << 32 | part.term);
    }
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0x68657463'6f6d6d21;
};

Status check_ranks(const Layout& layout, const char* name, int32_t size) {
  for (const Part& part : layout.parts) {
    if (part.rank < 0 || part.rank >= size) {
      return Status(Code::kOutOfRange,
                    fmt::format("{}: rank {} holds {}, and the communicator has {} ranks", name,
                                part.rank, to_text(part.box), size));
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Order>> Order::create(Communicator& communicator,
                                             std::vector<TensorOrder> tensors,
                                             const OrderOptions& options) {
  std::unique_ptr<Order> order(new Order(communicator, std::move(tensors), options));
  HETCOMM_RETURN_IF_ERROR(order->check());
  HETCOMM_RETURN_IF_ERROR(order->find_links());
  HETCOMM_RETURN_IF_ERROR(order->make_plans());
  order->content_ = order->hash();
  return order;
}

Order::Order(Communicator& communicator, std::vector<TensorOrder> tensors,
             const OrderOptions& options)
    : communicator_(communicator), orders_(std::move(tensors)), options_(options) {}

Status Order::check() const {
  return reshard::check(orders_, [this](const TensorOrder& order) {
    HETCOMM_RETURN_IF_ERROR(check_ranks(*order.source, "source", communicator_.size()));
    return check_ranks(*order.destination, "destination", communicator_.size());
  });
}

Status Order::find_links() {
  const topology::LinkModel* model = communicator_.links().model();
  if (model == nullptr) return {};
  std::vector<RankEnd> ends;
  for (int32_t rank = 0; rank < communicator_.size(); ++rank) {
    const topology::LinkEnd end = communicator_.links().end_of({.rank = rank});
    ends.push_back({std::string(end.host), std::string(end.nic)});
  }
  Result<Links> links = Links::create(*model, ends);
  if (!links.ok()) return links.status();
  links_ = std::move(links).value();
  return {};
}

Status Order::make_plans() {
  const std::vector<Tensor> tensors = tensors_of(orders_);
  const Wishes wishes = wishes_of(orders_, options_.plans, links_ ? &*links_ : nullptr);
  Result<std::vector<Choice>> choices = reshard::make_plans(tensors, wishes, communicator_.rank());
  if (!choices.ok()) return choices.status();
  choices_ = std::move(choices).value();
  if (!options_.plans.prove) return {};
  // The proof requires the moves of all ranks.
  Result<std::vector<Choice>> all = reshard::make_plans(tensors, wishes);
  return all.ok() ? prove_all(all.value()) : all.status();
}

uint64_t Order::hash() const {
  Mixer mixer;
  mixer.add(orders_.size());
  // Many tensors of a model share their layouts, so each layout is hashed once.
  std::map<const Layout*, uint64_t> known;
  const auto hash_of = [&](const Layout& layout) {
    const auto [found, added] = known.try_emplace(&layout, 0);
    if (added) {
      Mixer own;
      own.add(layout);
      found->second = own.value();
    }
    return found->second;
  };
  for (const TensorOrder& order : orders_) {
    mixer.add(static_cast<uint64_t>(order.types.source) << 32 |
              static_cast<uint64_t>(order.types.destination));
    mixer.add(hash_of(*order.source));
    mixer.add(hash_of(*order.destination));
    // Ranks may specify different strides, but the resulting memory order has to be the same.
    for (const uint8_t d : memory_order(*order.source, *order.destination)) mixer.add(d);
  }
  mixer.add(static_cast<uint64_t>(options_.plans.strategy));
  mixer.add(options_.plans.outer);
  mixer.add(options_.plans.slice_bytes);
  mixer.add(options_.in_flight);
  mixer.add(static_cast<uint64_t>(options_.overflow));
  mixer.add(links_ ? topology::hash_of(links_->model()) : 0);
  return mixer.value();
}

std::unique_ptr<Redistribution> Order::prepare() {
  ProgramOptions options;
  options.rank = communicator_.rank();
  options.bundle_bytes = bundle_bytes_of(orders_, options_.plans.slice_bytes);
  options.near = communicator_.links().near_ranks();
  std::vector<Passage> passages;
  for (size_t i = 0; i < orders_.size(); ++i) {
    Passage& passage = passages.emplace_back();
    passage.plan = &choices_[i].plan;
    passage.types = orders_[i].types;
    passage.types.overflow = options_.overflow;
  }
  return Redistribution::create(
      communicator_, make_program(passages, options),
      {.tag = options_.tag,
       .content = content_,
       .in_flight = options_.in_flight,
       .ranks = ranks_of(orders_),
       .landing_bytes = options_.landing_bytes != 0 ? options_.landing_bytes : kLandingBytes,
       .share = {.weight = options_.weight, .bytes_per_second = options_.bytes_per_second}});
}

Result<Facts> Order::facts() const {
  Facts facts;
  facts.strategy = strategy_named(choices_.front().plan.strategy).value_or(Strategy::kAuto);
  for (const Choice& choice : choices_) {
    facts.is_of_all = facts.is_of_all && choice.plan.strategy == choices_.front().plan.strategy;
  }
  if (!links_) return facts;
  const std::vector<Tensor> tensors = tensors_of(orders_);
  const Wishes wishes = wishes_of(orders_, options_.plans, &*links_);
  Result<std::vector<Choice>> all = reshard::make_plans(tensors, wishes);
  if (!all.ok()) return all.status();
  facts.forecast_ns = forecast_of_list(tensors, all.value(), wishes).ns;
  return facts;
}

Result<std::string> Order::describe(PlanFormat format) const {
  DraftOptions options = options_.plans;
  options.prove = false;
  return draft(orders_, options, links_ ? &*links_ : nullptr, format);
}

}  // namespace hetcomm::reshard
