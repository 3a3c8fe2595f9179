#include "src/reshard/preparation.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "reshard/faults.h"
#include "reshard/memory_rule.h"
#include "reshard/move_plan_draw.h"
#include "reshard/move_plan_json.h"
#include "reshard/proof.h"
#include "reshard/survivors.h"
#include "src/base/mix64.h"

namespace hetcomm::reshard {
namespace {

constexpr uint64_t kSliceBytes = 16u << 20;    // bytes of a message
constexpr uint64_t kLandingBytes = 64u << 20;  // in each direction

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

std::set<int> ranks_of(const Layout& layout) {
  std::set<int> ranks;
  for (const Part& part : layout.parts) ranks.insert(part.rank);
  return ranks;
}

// Returns the ranks that appear in some layout.
std::vector<int> ranks_of(const std::vector<TensorOrder>& orders) {
  std::set<int> ranks;
  std::set<const Layout*> seen;  // many tensors of a model have the same layouts
  for (const TensorOrder& order : orders) {
    for (const auto& layout : {order.source, order.destination}) {
      if (seen.insert(layout.get()).second) ranks.merge(ranks_of(*layout));
    }
  }
  return {ranks.begin(), ranks.end()};
}

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

// Adds the tensor's name to the error text if there are several tensors.
Status named(const Status& status, size_t tensor, size_t count) {
  return count == 1 ? status : status.annotate(fmt::format("tensor {}", tensor));
}

Status check_types(const TypePair& types, const Layout& source) {
  if (!can_convert(types.source, types.destination)) {
    return invalid(fmt::format(
        "data type {} cannot be converted to {}: floating-point types can, float64 to and from "
        "float32 only",
        static_cast<int>(types.source), static_cast<int>(types.destination)));
  }
  if (source.divisor > 1 && types.source == ElementType::kBool) {
    return unsupported("a sum of truth values cannot be divided");
  }
  return {};
}

// Checks each layout once, since many tensors of a model have the same layouts.
class DestinationCheck {
 public:
  Status operator()(const Layout& layout) {
    return sound_.insert(&layout).second ? check_destination(layout).annotate("destination")
                                         : Status();
  }

 private:
  std::set<const Layout*> sound_;
};

std::vector<Tensor> tensors_of(const std::vector<TensorOrder>& orders) {
  std::vector<Tensor> tensors;
  tensors.reserve(orders.size());
  for (const TensorOrder& order : orders) {
    tensors.push_back({.source = order.source.get(),
                       .destination = order.destination.get(),
                       .element_bytes = reduce::size_of(order.types.destination)});
  }
  return tensors;
}

// Returns the bytes of a bundle: each message has about |slice_bytes|, and the larger side has one
// per rank.
uint64_t bundle_bytes_of(const std::vector<TensorOrder>& orders, const OrderOptions& options) {
  size_t ranks = 1;
  const Layout* last[] = {nullptr, nullptr};
  for (const TensorOrder& order : orders) {
    // Many tensors of a model have the same layouts.
    if (order.source.get() == last[0] && order.destination.get() == last[1]) continue;
    last[0] = order.source.get();
    last[1] = order.destination.get();
    ranks = std::max({ranks, ranks_of(*last[0]).size(), ranks_of(*last[1]).size()});
  }
  return (options.slice_bytes != 0 ? options.slice_bytes : kSliceBytes) * ranks;
}

Wishes wishes_of(const std::vector<TensorOrder>& orders, const OrderOptions& options,
                 const Links* links) {
  return {.strategy = options.strategy,
          .outer = options.outer,
          .bundle_bytes = bundle_bytes_of(orders, options),
          .links = links};
}

Status prove_all(const std::vector<Choice>& choices) {
  for (size_t i = 0; i < choices.size(); ++i) {
    const Status proved = prove(choices[i].plan);
    if (proved.ok()) continue;
    return named(Status(proved.code() == Code::kOutOfResources ? proved.code() : Code::kInternal,
                        fmt::format("the plan was not proved: {}", proved.text())),
                 i, choices.size());
  }
  return {};
}

}  // namespace

Result<std::string> draft(const std::vector<TensorOrder>& tensors, const OrderOptions& options,
                          const Links* links, PlanFormat format) {
  DestinationCheck check_places;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const Status& status : {check_types(tensors[i].types, *tensors[i].source),
                                 check_places(*tensors[i].destination)}) {
      if (!status.ok()) return named(status, i, tensors.size());
    }
  }
  Result<std::vector<Choice>> all =
      make_plans(tensors_of(tensors), wishes_of(tensors, options, links));
  if (!all.ok()) return all.status();
  if (options.prove) HETCOMM_RETURN_IF_ERROR(prove_all(all.value()));
  const bool is_list = all->size() != 1;
  if (format == PlanFormat::kSvg && is_list) {
    return unsupported(fmt::format("a picture shows one tensor, and this moves {}", all->size()));
  }
  std::string text;
  for (size_t i = 0; i < all->size(); ++i) {
    const Choice& choice = all.value()[i];
    const uint64_t element_bytes = reduce::size_of(tensors[i].types.destination);
    if (format == PlanFormat::kSvg) return to_svg(choice.plan, element_bytes);
    if (format == PlanFormat::kText) {
      if (is_list) text += fmt::format("tensor {}\n", i);
      text += to_text(choice.plan, element_bytes);
      continue;
    }
    text += i == 0 ? (is_list ? "[" : "") : ",\n";
    text += links != nullptr ? to_json(choice, element_bytes, *links)
                             : to_json(choice.plan, element_bytes);
  }
  if (format == PlanFormat::kJson && is_list) text += all->empty() ? "[]" : "]";
  return text;
}

Result<std::vector<TensorOrder>> orders_of_survivors(const std::vector<TensorOrder>& tensors,
                                                     const std::vector<int>& rank_now) {
  // Many tensors of a model have the same layouts.
  std::map<const Layout*, std::shared_ptr<const Layout>> known;
  const auto left_of = [&](std::shared_ptr<const Layout>& layout) -> Status {
    std::shared_ptr<const Layout>& left = known[layout.get()];
    if (left == nullptr) {
      Result<Layout> made = layout_of_survivors(*layout, rank_now);
      if (!made.ok()) return made.status();
      left = std::make_shared<const Layout>(std::move(made).value());
    }
    layout = left;
    return {};
  };
  std::vector<TensorOrder> orders = tensors;
  for (size_t i = 0; i < orders.size(); ++i) {
    for (const bool is_source : {true, false}) {
      const Status status = left_of(is_source ? orders[i].source : orders[i].destination);
      if (status.ok()) continue;
      return named(status.annotate(is_source ? "source" : "destination"), i, orders.size());
    }
  }
  return orders;
}

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
  DestinationCheck check_places;
  for (size_t i = 0; i < orders_.size(); ++i) {
    const TensorOrder& order = orders_[i];
    for (const Status& status :
         {check_ranks(*order.source, "source", communicator_.size()),
          check_ranks(*order.destination, "destination", communicator_.size()),
          check_types(order.types, *order.source), check_places(*order.destination)}) {
      if (!status.ok()) return named(status, i, orders_.size());
    }
  }
  return {};
}

Status Order::find_links() {
  const topology::LinkModel* model = communicator_.link_model();
  if (model == nullptr) return {};
  std::vector<RankEnd> ends;
  for (int32_t rank = 0; rank < communicator_.size(); ++rank) {
    const topology::LinkEnd end = communicator_.link_end({.rank = rank});
    ends.push_back({std::string(end.host), std::string(end.nic)});
  }
  Result<Links> links = Links::create(*model, ends);
  if (!links.ok()) return links.status();
  links_ = std::move(links).value();
  return {};
}

Status Order::make_plans() {
  const std::vector<Tensor> tensors = tensors_of(orders_);
  const Wishes wishes = wishes_of(orders_, options_, links_ ? &*links_ : nullptr);
  Result<std::vector<Choice>> choices = reshard::make_plans(tensors, wishes, communicator_.rank());
  if (!choices.ok()) return choices.status();
  choices_ = std::move(choices).value();
  if (!options_.prove) return {};
  // The proof needs the moves of all ranks.
  Result<std::vector<Choice>> all = reshard::make_plans(tensors, wishes);
  return all.ok() ? prove_all(all.value()) : all.status();
}

uint64_t Order::hash() const {
  Mixer mixer;
  mixer.add(orders_.size());
  // Many tensors of a model have the same layouts.
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
  }
  mixer.add(static_cast<uint64_t>(options_.strategy));
  mixer.add(options_.outer);
  mixer.add(options_.slice_bytes);
  mixer.add(options_.in_flight);
  mixer.add(static_cast<uint64_t>(options_.overflow));
  mixer.add(links_ ? topology::hash_of(links_->model()) : 0);
  return mixer.value();
}

std::unique_ptr<Redistribution> Order::prepare() {
  ProgramOptions options;
  options.rank = communicator_.rank();
  options.bundle_bytes = bundle_bytes_of(orders_, options_);
  options.near = communicator_.near_ranks();
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
  Result<std::vector<Choice>> all =
      reshard::make_plans(tensors_of(orders_), wishes_of(orders_, options_, &*links_));
  if (!all.ok()) return all.status();
  for (const Choice& choice : all.value()) facts.forecast_ns += choice.forecast.ns;
  return facts;
}

Result<std::string> Order::describe(PlanFormat format) const {
  OrderOptions options = options_;
  options.prove = false;
  return draft(orders_, options, links_ ? &*links_ : nullptr, format);
}

}  // namespace hetcomm::reshard
