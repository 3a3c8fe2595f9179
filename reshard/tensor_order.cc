#include "reshard/tensor_order.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/core.h>

#include "reshard/faults.h"
#include "reshard/memory_rule.h"
#include "reshard/proof.h"
#include "reshard/survivors.h"

namespace hetcomm::reshard {
namespace {

// Prepends the index of the tensor to the error text if there are several tensors.
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

// Checks each layout only once, since many tensors of a model share their layouts.
class DestinationCheck {
 public:
  Status operator()(const Layout& layout) {
    return sound_.insert(&layout).second ? check_destination(layout).annotate("destination")
                                         : Status();
  }

 private:
  std::set<const Layout*> sound_;
};

}  // namespace

std::set<int> ranks_of(const Layout& layout) {
  std::set<int> ranks;
  for (const Part& part : layout.parts) ranks.insert(part.rank);
  return ranks;
}

std::vector<int> ranks_of(const std::vector<TensorOrder>& orders) {
  std::set<int> ranks;
  std::set<const Layout*> seen;  // many tensors of a model share their layouts
  for (const TensorOrder& order : orders) {
    for (const auto& layout : {order.source, order.destination}) {
      if (seen.insert(layout.get()).second) ranks.merge(ranks_of(*layout));
    }
  }
  return {ranks.begin(), ranks.end()};
}

Status check(const std::vector<TensorOrder>& orders,
             const std::function<Status(const TensorOrder&)>& check_ranks) {
  DestinationCheck check_destination_once;
  for (size_t i = 0; i < orders.size(); ++i) {
    for (const Status& status :
         {check_ranks(orders[i]), check_types(orders[i].types, *orders[i].source),
          check_destination_once(*orders[i].destination)}) {
      if (!status.ok()) return named(status, i, orders.size());
    }
  }
  return {};
}

std::vector<Tensor> tensors_of(const std::vector<TensorOrder>& orders) {
  std::vector<Tensor> tensors;
  tensors.reserve(orders.size());
  for (const TensorOrder& order : orders) {
    tensors.push_back({.source = order.source.get(),
                       .destination = order.destination.get(),
                       .element_bytes = size_of(order.types.destination)});
  }
  return tensors;
}

uint64_t bundle_bytes_of(const std::vector<TensorOrder>& orders, uint64_t slice_bytes) {
  size_t ranks = 1;
  const Layout* last[] = {nullptr, nullptr};
  for (const TensorOrder& order : orders) {
    // Consecutive tensors of a model often share their layouts. The later ones add no rank.
    if (order.source.get() == last[0] && order.destination.get() == last[1]) continue;
    last[0] = order.source.get();
    last[1] = order.destination.get();
    ranks = std::max({ranks, ranks_of(*last[0]).size(), ranks_of(*last[1]).size()});
  }
  return slice_bytes_or_default(slice_bytes) * ranks;
}

Wishes wishes_of(const std::vector<TensorOrder>& orders, const DraftOptions& options,
                 const Links* links) {
  return {.strategy = options.strategy,
          .outer = options.outer,
          .bundle_bytes = bundle_bytes_of(orders, options.slice_bytes),
          .slice_bytes = slice_bytes_or_default(options.slice_bytes),
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

Result<std::vector<TensorOrder>> orders_of_survivors(const std::vector<TensorOrder>& tensors,
                                                     const std::vector<int>& rank_now) {
  // Many tensors of a model share their layouts, so each layout is converted once.
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

}  // namespace hetcomm::reshard
