#include "reshard/layout_json.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "reshard/mesh.h"

namespace hetcomm::reshard {
namespace {

using present::Fields;
using present::Json;
using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kLayoutFormat = "hetcomm layout";
constexpr uint64_t kLayoutVersion = 1;
constexpr int kLayoutNesting = 8;
constexpr uint64_t kLargestNumber = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kLargestRank = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxMeshAxes = 16;

// The words of Placement::Kind, in its order.
constexpr const char* kPlacementKinds[] = {"replicate", "shard",   "zigzag",
                                           "strided",   "partial", "average"};
constexpr const char* kUnevenWords[] = {"refuse", "ceil"};

// --- writing ---------------------------------------------------------------------------------

OrderedJson json_of(const Part& part) {
  OrderedJson json;
  json["rank"] = part.rank;
  if (part.copy != 0) json["copy"] = part.copy;
  if (part.term != 0) json["term"] = part.term;
  json["box"] = OrderedJson::array();
  for (size_t d = 0; d < part.box.dimensions; ++d) {
    json["box"].push_back({part.box.begin[d], part.box.end[d]});
  }
  if (part.offset != 0) json["offset"] = part.offset;
  if (part.strides != dense_strides(part.box)) {
    json["strides"] =
        std::vector<uint64_t>(part.strides.begin(), part.strides.begin() + part.box.dimensions);
  }
  return json;
}

// --- reading ---------------------------------------------------------------------------------

class LayoutReader {
 public:
  Result<Layout> read(const Json& document, const std::string& path) {
    Fields fields(document, path, failure_);
    if (fields.has("format") || fields.has("version"))
      fields.check_version(kLayoutFormat, kLayoutVersion);
    const bool has_parts = fields.has("parts");
    const bool has_mesh = fields.has("mesh");
    const bool has_activations = fields.has("activations");
    if (!failure_.ok()) return failure_;
    if (has_parts + has_mesh + has_activations != 1) {
      fields.fail("", "has to have one of parts, mesh and activations");
      return failure_;
    }
    if (has_parts) return read_parts(fields, path);
    return has_mesh ? read_mesh(fields, *fields.find("mesh"), path)
                    : read_activations(fields, *fields.find("activations"), path);
  }

 private:
  static std::string below(const std::string& path, const char* name) {
    return path.empty() ? name : path + "." + name;
  }

  std::vector<uint64_t> numbers(Fields& fields, const char* name, size_t most) {
    std::vector<uint64_t> found;
    fields.each(
        name,
        [&](const Json& json, const std::string& path) {
          found.push_back(fields.number_at(json, path, kLargestNumber));
        },
        most);
    return found;
  }
  std::vector<int> ranks(Fields& fields) {
    if (!fields.has("ranks")) fields.fail("ranks", "is missing");
    std::vector<int> found;
    fields.each(
        "ranks",
        [&](const Json& json, const std::string& path) {
          found.push_back(static_cast<int>(fields.number_at(json, path, kLargestRank)));
        },
        kMaxParts);
    return found;
  }
  std::vector<uint64_t> shape(Fields& fields) {
    if (!fields.has("shape")) fields.fail("shape", "is missing");
    return numbers(fields, "shape", kMaxDimensions);
  }

  Result<Layout> read_parts(Fields& fields, const std::string& whole) {
    fields.allow_only({"format", "version", "shape", "padded_shape", "terms", "divisor", "parts"});
    Layout layout;
    layout.shape = shape(fields);
    if (failure_.ok() && layout.shape.empty()) fields.fail("shape", "is empty");
    layout.padded_shape = numbers(fields, "padded_shape", kMaxDimensions);
    layout.terms = count(fields, "terms");
    layout.divisor = count(fields, "divisor");
    std::vector<Part>& parts = layout.parts.edit();
    fields.each(
        "parts",
        [&](const Json& json, const std::string& path) {
          parts.push_back(read_part(Fields(json, path, failure_), layout.shape.size()));
        },
        kMaxParts);
    if (!failure_.ok()) return failure_;
    const Status sound = check(layout);
    if (!sound.ok()) return whole.empty() ? sound : sound.annotate(whole);
    return layout;
  }
  // Returns the number in field |name|, or 1 if the field is absent.
  static uint32_t count(Fields& fields, const char* name) {
    if (!fields.has(name)) return 1;
    const uint64_t found = fields.number(name, std::numeric_limits<uint32_t>::max());
    if (found == 0) fields.fail(name, "is 0");
    return static_cast<uint32_t>(found);
  }

  Part read_part(Fields fields, size_t dimensions) {
    fields.allow_only({"rank", "copy", "term", "box", "offset", "strides"});
    Part part;
    for (const char* const name : {"rank", "box"}) {
      if (!fields.has(name)) fields.fail(name, "is missing");
    }
    part.rank = static_cast<int>(fields.number("rank", kLargestRank));
    part.copy = static_cast<uint32_t>(fields.number("copy", UINT32_MAX));
    part.term = static_cast<uint32_t>(fields.number("term", UINT32_MAX));
    part.offset = fields.number("offset", kLargestNumber);
    part.box = read_box(fields, dimensions);
    if (!failure_.ok()) return part;
    part.strides = dense_strides(part.box);
    if (!fields.has("strides")) return part;
    const std::vector<uint64_t> strides = numbers(fields, "strides", dimensions);
    if (failure_.ok() && strides.size() != dimensions) {
      fields.fail("strides", fmt::format("has {} numbers, and the shape has {} dimensions",
                                         strides.size(), dimensions));
    }
    std::copy(strides.begin(), strides.end(), part.strides.begin());
    return part;
  }

  Result<Layout> read_mesh(Fields& fields, const Json& json, const std::string& path) {
    fields.allow_only({"format", "version", "shape", "mesh"});
    const std::vector<uint64_t> own_shape = shape(fields);
    const std::string inner = below(path, "mesh");
    Fields given(json, inner, failure_);
    given.allow_only({"axes", "ranks", "placements", "uneven", "view_offset", "view_strides"});
    if (!given.has("placements")) given.fail("placements", "is missing");
    Mesh mesh;
    mesh.axes = numbers(given, "axes", kMaxMeshAxes);
    mesh.ranks = ranks(given);
    std::vector<Placement> placements;
    given.each(
        "placements",
        [&](const Json& each, const std::string& at) {
          placements.push_back(read_placement(Fields(each, at, failure_)));
        },
        kMaxMeshAxes);
    const auto uneven = given.word("uneven", kUnevenWords, Uneven::kRefuse);
    View view;
    view.offset = given.number("view_offset", kLargestNumber);
    view.strides = numbers(given, "view_strides", kMaxDimensions);
    if (!failure_.ok()) return failure_;
    return annotated(layout_of(own_shape, mesh, placements, uneven, view), inner);
  }
  // Fails if field |name| is missing and |needed|, or if it is present and not |needed|.
  static void need(Fields& fields, const char* name, bool needed) {
    if (fields.has(name) == needed) return;
    fields.fail(name, needed ? "is missing" : "has no meaning for this kind");
  }
  Placement read_placement(Fields fields) {
    fields.allow_only({"kind", "dimension", "split", "sizes"});
    if (!fields.has("kind")) fields.fail("kind", "is missing");
    Placement placement;
    placement.kind = fields.word("kind", kPlacementKinds, Placement::Kind::kReplicate);
    const Placement::Kind kind = placement.kind;
    const bool cuts = kind == Placement::Kind::kShard || kind == Placement::Kind::kZigzag ||
                      kind == Placement::Kind::kStrided;
    need(fields, "dimension", cuts);
    need(fields, "split", kind == Placement::Kind::kStrided);
    if (cuts) placement.dimension = fields.number("dimension", kMaxDimensions);
    if (kind == Placement::Kind::kStrided) placement.split = fields.number("split", kMaxElements);
    placement.sizes = numbers(fields, "sizes", kMaxParts);
    if (!placement.sizes.empty() && kind != Placement::Kind::kShard) {
      fields.fail("sizes", "is for a shard only");
    }
    return placement;
  }

  Result<Layout> read_activations(Fields& fields, const Json& json, const std::string& path) {
    fields.allow_only({"format", "version", "activations"});
    const std::string inner = below(path, "activations");
    Fields given(json, inner, failure_);
    given.allow_only(
        {"batch", "sequence", "hidden", "data", "context", "tensor", "order", "zigzag", "ranks"});
    for (const char* const name : {"batch", "sequence", "hidden"}) {
      if (!given.has(name)) given.fail(name, "is missing");
    }
    const auto degree = [&](const char* name) {
      return given.has(name) ? given.number(name, kMaxParts) : 1;
    };
    const std::string order = given.has("order") ? given.text("order") : "dct";
    const bool zigzag = given.flag("zigzag");
    const Degrees degrees{.data = degree("data"),
                          .context = degree("context"),
                          .tensor = degree("tensor"),
                          .order = order,
                          .zigzag = zigzag};
    const std::vector<int> own_ranks = ranks(given);
    const uint64_t batch = given.number("batch", kMaxElements);
    const uint64_t sequence = given.number("sequence", kMaxElements);
    const uint64_t hidden = given.number("hidden", kMaxElements);
    if (!failure_.ok()) return failure_;
    return annotated(activations(batch, sequence, hidden, degrees, own_ranks), inner);
  }

  static Result<Layout> annotated(Result<Layout> layout, const std::string& path) {
    if (layout.ok()) return layout;
    return layout.status().annotate(path);
  }

  Status failure_;
};

}  // namespace

Box read_box(Fields& fields, size_t dimensions) {
  Box box;
  box.dimensions = dimensions;
  size_t d = 0;
  fields.each(
      "box",
      [&](const Json& json, const std::string& path) {
        if (!json.is_array() || json.size() != 2) {
          return fields.fail_at(path, "is no pair of a beginning and an end");
        }
        box.begin[d] = fields.number_at(json[0], path + "[0]", kLargestNumber);
        box.end[d] = fields.number_at(json[1], path + "[1]", kLargestNumber);
        ++d;
      },
      dimensions);
  if (fields.failure().ok() && d != dimensions) {
    fields.fail("box", fmt::format("has {} dimensions, and the shape has {}", d, dimensions));
  }
  return box;
}

std::string to_json(const Layout& layout) {
  OrderedJson json;
  json["format"] = kLayoutFormat;
  json["version"] = kLayoutVersion;
  json["shape"] = layout.shape;
  if (!layout.padded_shape.empty()) json["padded_shape"] = layout.padded_shape;
  if (layout.terms != 1) json["terms"] = layout.terms;
  if (layout.divisor != 1) json["divisor"] = layout.divisor;
  json["parts"] = OrderedJson::array();
  for (const Part& part : layout.parts) json["parts"].push_back(json_of(part));
  return json.dump() + "\n";
}

Result<Layout> parse_layout(std::string_view json) {
  Result<Json> document =
      present::parse_document(json, kLayoutFormat, kLayoutVersion, kLayoutNesting);
  if (!document.ok()) return document.status();
  return read_layout(*document, "");
}

Result<Layout> read_layout(const Json& json, const std::string& path) {
  return LayoutReader().read(json, path);
}

}  // namespace hetcomm::reshard
