#include "reshard/move_plan_json.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "reshard/by_strategy.h"
#include "reshard/layout_json.h"
#include "src/present/json_fields.h"

namespace hetcomm::reshard {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kPlanFormat = "hetcomm move plan";
constexpr uint64_t kPlanVersion = 1;

OrderedJson json_of(const Box& box) {
  OrderedJson ranges = OrderedJson::array();
  for (size_t d = 0; d < box.dimensions; ++d) ranges.push_back({box.begin[d], box.end[d]});
  return ranges;
}

OrderedJson json_of(const Layout& layout) {
  OrderedJson parts = OrderedJson::array();
  for (const Part& part : layout.parts) {
    parts.push_back({{"rank", part.rank}, {"box", json_of(part.box)}});
  }
  return parts;
}

OrderedJson json_of(const MovePlan& plan, uint64_t element_bytes) {
  OrderedJson json = {{"format", kPlanFormat},          {"version", kPlanVersion},
                      {"strategy", plan.strategy},      {"shape", plan.source.shape},
                      {"element_bytes", element_bytes}, {"stages", OrderedJson::array()}};
  for (size_t i = 0; i < plan.hops.size(); ++i) {
    const Layout& from = plan.from(i);
    const Layout& to = plan.hops[i].to;
    uint64_t elements = 0;
    OrderedJson moves = OrderedJson::array();
    for (const Move& move : plan.hops[i].moves) {
      const int sender = from.parts[move.from].rank;
      const int receiver = to.parts[move.to].rank;
      if (sender != receiver) elements += move.box.elements();
      moves.push_back(
          {{"from", sender}, {"to", receiver}, {"box", json_of(move.box)}, {"adds", move.adds}});
    }
    json["stages"].push_back({{"messages", count_messages(plan, i)},
                              {"bytes", elements * element_bytes},
                              {"moves", std::move(moves)}});
  }
  json["layouts"] = OrderedJson::array({json_of(plan.source)});
  for (const Hop& hop : plan.hops) json["layouts"].push_back(json_of(hop.to));
  return json;
}

constexpr int kIndent = 1;
// Names come from files, so bytes that are not UTF-8 are replaced.
std::string text_of(const OrderedJson& json) {
  return json.dump(kIndent, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

// --- reading ---------------------------------------------------------------------------------

using present::Fields;

class PlanReader {
 public:
  Result<PlanOutline> read(const present::Json& document, const std::string& path) {
    Fields fields(document, path, failure_);
    fields.check_version(kPlanFormat, kPlanVersion);
    fields.allow_only({"format", "version", "strategy", "shape", "element_bytes", "stages",
                       "layouts", "forecast_ns", "resources", "considered"});
    MovePlan& plan = outline_.plan;
    plan.strategy = fields.text("strategy");
    if (failure_.ok() && !strategy_named(plan.strategy)) {
      fields.fail("strategy",
                  fmt::format("is '{}', which is no strategy", printable(plan.strategy)));
    }
    outline_.element_bytes = fields.number("element_bytes", kMaxElementBytes);
    if (failure_.ok() && outline_.element_bytes == 0) {
      fields.fail("element_bytes", "is 0 or missing");
    }
    fields.each(
        "shape",
        [&](const present::Json& json, const std::string& at) {
          plan.source.shape.push_back(
              fields.number_at(json, at, std::numeric_limits<uint64_t>::max()));
        },
        kMaxDimensions);
    if (failure_.ok() && plan.source.shape.empty()) fields.fail("shape", "is missing or empty");
    if (failure_.ok()) check_extents(fields);
    read_layouts(fields);
    read_hops(fields);
    if (!failure_.ok()) return failure_;
    return std::move(outline_);
  }

 private:
  static constexpr uint64_t kMaxElementBytes = 16;
  static constexpr uint64_t kHighestRank = std::numeric_limits<int32_t>::max();
  static constexpr size_t kMaxHops = 16;
  static constexpr size_t kMaxMoves = size_t{1} << 24;

  // Returns the indices of the parts, keyed by rank.
  static std::multimap<int, uint32_t> parts_by_rank(const Layout& layout) {
    std::multimap<int, uint32_t> parts;
    for (uint32_t i = 0; i < layout.parts.size(); ++i) parts.emplace(layout.parts[i].rank, i);
    return parts;
  }

  void check_extents(Fields& fields) {
    uint64_t elements = 1;
    for (const uint64_t extent : outline_.plan.source.shape) {
      if (extent > kMaxElements / std::max<uint64_t>(elements, 1)) {
        return fields.fail("shape", "has more than 2^48 elements");
      }
      elements *= extent;
    }
  }

  // Reads a box, which may extend into the padding of a layout.
  Box box(Fields& fields) {
    const Box found = read_box(fields, outline_.plan.source.shape.size());
    uint64_t elements = 1;
    for (size_t d = 0; d < found.dimensions && failure_.ok(); ++d) {
      const std::string name = fmt::format("box[{}]", d);
      if (found.begin[d] > found.end[d] || found.end[d] > kMaxElements) {
        fields.fail(name, "is no range");
      } else if (found.extent(d) > kMaxElements / std::max<uint64_t>(elements, 1)) {
        fields.fail(name, "makes a box of more than 2^48 elements");
      }
      elements *= found.extent(d);
    }
    return found;
  }

  int rank(Fields& fields, const char* name) {
    if (!fields.has(name)) fields.fail(name, "is missing");
    return static_cast<int>(fields.number(name, kHighestRank));
  }

  void read_layouts(Fields& fields) {
    fields.each(
        "layouts",
        [&](const present::Json& json, const std::string& path) {
          if (!json.is_array() || json.size() > kMaxParts) {
            return fields.misfit(path, json, fmt::format("list of at most {} parts", kMaxParts));
          }
          Layout& layout = layouts_.emplace_back();
          layout.shape = outline_.plan.source.shape;
          for (size_t i = 0; i < json.size() && failure_.ok(); ++i) {
            Fields each(json[i], fmt::format("{}[{}]", path, i), failure_);
            each.allow_only({"rank", "box"});
            Part part;
            part.rank = rank(each, "rank");
            part.box = box(each);
            layout.parts.push_back(part);
          }
        },
        kMaxHops + 1);
    if (failure_.ok() && layouts_.size() < 2) fields.fail("layouts", "has fewer than 2 elements");
  }

  void read_hops(Fields& fields) {
    std::vector<Hop>& hops = outline_.plan.hops;
    fields.each(
        "stages",
        [&](const present::Json& json, const std::string& path) {
          Fields stage(json, path, failure_);
          stage.allow_only({"messages", "bytes", "moves", "ns", "slowest"});
          const size_t index = hops.size();
          Hop& hop = hops.emplace_back();
          if (index + 1 >= layouts_.size()) {
            return fields.fail("stages", fmt::format("has {} elements or more, and layouts has {}",
                                                     hops.size(), layouts_.size()));
          }
          const auto from = parts_by_rank(layouts_[index]);
          const auto to = parts_by_rank(layouts_[index + 1]);
          stage.each(
              "moves",
              [&](const present::Json& move, const std::string& at) {
                hop.moves.push_back(read_move(Fields(move, at, failure_), index, from, to));
              },
              kMaxMoves);
        },
        kMaxHops);
    if (!failure_.ok()) return;
    if (hops.size() + 1 != layouts_.size()) {
      return fields.fail("stages", fmt::format("has {} elements, and layouts has {}", hops.size(),
                                               layouts_.size()));
    }
    outline_.plan.source = std::move(layouts_.front());
    for (size_t i = 0; i < hops.size(); ++i) hops[i].to = std::move(layouts_[i + 1]);
  }

  Move read_move(Fields fields, size_t hop, const std::multimap<int, uint32_t>& from,
                 const std::multimap<int, uint32_t>& to) {
    fields.allow_only({"from", "to", "box", "adds"});
    Move move;
    move.box = box(fields);
    if (failure_.ok() && !outline_.plan.source.whole().contains(move.box)) {
      fields.fail("box", "reaches beyond the shape");
    }
    move.adds = fields.flag("adds");
    move.from = part_of(fields, "from", layouts_[hop], from, move.box);
    move.to = part_of(fields, "to", layouts_[hop + 1], to, move.box);
    return move;
  }

  // Returns the part that holds |box| and belongs to the rank in field |name|.
  uint32_t part_of(Fields& fields, const char* name, const Layout& layout,
                   const std::multimap<int, uint32_t>& parts, const Box& box) {
    const int wanted = rank(fields, name);
    if (!failure_.ok()) return 0;
    const auto [first, last] = parts.equal_range(wanted);
    for (auto each = first; each != last; ++each) {
      if (layout.parts[each->second].box.contains(box)) return each->second;
    }
    fields.fail(name, fmt::format("is rank {}, whose parts do not hold the box", wanted));
    return 0;
  }

  PlanOutline outline_;
  std::vector<Layout> layouts_;
  Status failure_;
};

}  // namespace

std::string to_json(const MovePlan& plan, uint64_t element_bytes) {
  return text_of(json_of(plan, element_bytes));
}

std::string to_json(const Choice& choice, uint64_t element_bytes, const Links& links) {
  OrderedJson json = json_of(choice.plan, element_bytes);
  const auto& resources = links.model().resources;
  json["forecast_ns"] = choice.forecast.ns;
  for (size_t i = 0; i < choice.forecast.hops.size(); ++i) {
    const HopForecast& hop = choice.forecast.hops[i];
    json["stages"][i]["ns"] = hop.ns;
    if (hop.slowest_resource >= 0) {
      json["stages"][i]["slowest"] = resources[static_cast<size_t>(hop.slowest_resource)].name;
    }
  }
  json["resources"] = OrderedJson::array();
  for (size_t i = 0; i < resources.size(); ++i) {
    const uint64_t bytes = choice.forecast.resource_bytes[i];
    if (bytes > 0) json["resources"].push_back({{"name", resources[i].name}, {"bytes", bytes}});
  }
  json["considered"] = OrderedJson::array();
  for (const Considered& each : choice.considered) {
    json["considered"].push_back(
        {{"strategy", each.strategy}, {"forecast_ns", each.ns}, {"refused", each.refused}});
  }
  return text_of(json);
}

Result<std::vector<PlanOutline>> parse_move_plans(std::string_view json) {
  constexpr int kPlanNesting = 10;
  Result<present::Json> document = present::parse_json(json, kPlanNesting);
  if (!document.ok()) return document.status();
  std::vector<PlanOutline> plans;
  const bool is_list = document->is_array();
  const size_t count = is_list ? document->size() : 1;
  for (size_t i = 0; i < count; ++i) {
    const std::string path = is_list ? fmt::format("[{}]", i) : "";
    Result<PlanOutline> plan = PlanReader().read(is_list ? (*document)[i] : *document, path);
    if (!plan.ok()) return plan.status();
    plans.push_back(std::move(plan).value());
  }
  return plans;
}

}  // namespace hetcomm::reshard
