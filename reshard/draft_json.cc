#include "reshard/draft_json.h"

#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "reshard/element_types.h"
#include "reshard/layout_json.h"
#include "reshard/links_json.h"

namespace hetcomm::reshard {
namespace {

using present::Fields;
using present::Json;

constexpr std::string_view kQuestionFormat = "hetcomm reshard question";
constexpr uint64_t kQuestionVersion = 1;
constexpr int kQuestionNesting = 16;
constexpr size_t kMaxTensors = size_t{1} << 20;
constexpr size_t kMaxName = 255;
constexpr uint64_t kLargestChoice = std::numeric_limits<uint64_t>::max();

class QuestionReader {
 public:
  Result<DraftQuestion> read(const Json& document) {
    Fields fields(document, "", failure_);
    fields.allow_only({"format", "version", "layouts", "tensors", "strategy", "outer",
                       "slice_bytes", "prove", "links"});
    read_options(fields);
    read_layouts(fields);
    fields.each(
        "tensors",
        [this](const Json& json, const std::string& path) {
          read_tensor(Fields(json, path, failure_));
        },
        kMaxTensors);
    if (failure_.ok() && question_.tensors.empty()) fields.fail("tensors", "has no element");
    if (const Json* const links = fields.find("links"); links != nullptr) read_links(*links);
    if (!failure_.ok()) return failure_;
    return std::move(question_);
  }

 private:
  void read_options(Fields& fields) {
    DraftOptions& options = question_.options;
    if (fields.has("strategy")) {
      const std::string name = fields.text("strategy");
      const std::optional<Strategy> strategy = strategy_named(name);
      if (failure_.ok() && !strategy) {
        fields.fail("strategy", fmt::format("is '{}', which is no strategy", printable(name)));
      }
      options.strategy = strategy.value_or(Strategy::kAuto);
    }
    options.outer = fields.number("outer", kLargestChoice);
    options.slice_bytes = fields.number("slice_bytes", kLargestChoice);
    options.prove = fields.flag("prove");
  }

  void read_layouts(Fields& fields) {
    const Json* const layouts = fields.find("layouts");
    if (layouts == nullptr) return fields.fail("layouts", "is missing");
    if (!layouts->is_object()) return fields.fail("layouts", "is no object");
    for (const auto& [name, json] : layouts->items()) {
      if (!failure_.ok()) return;
      if (name.size() > kMaxName) {
        return fields.fail("layouts", fmt::format("has a name of more than {} bytes", kMaxName));
      }
      Result<Layout> layout = read_layout(json, "layouts." + printable(name));
      if (layout.ok()) {
        layouts_.emplace(name, std::make_shared<const Layout>(std::move(layout).value()));
      } else {
        failure_ = layout.status();
      }
    }
  }

  std::shared_ptr<const Layout> layout(Fields& fields, const char* name) {
    if (!fields.has(name)) fields.fail(name, "is missing");
    const std::string wanted = fields.text(name);
    const auto found = layouts_.find(wanted);
    if (found != layouts_.end()) return found->second;
    fields.fail(name, fmt::format("is '{}', which is none of the layouts", printable(wanted)));
    return nullptr;
  }

  void read_tensor(Fields fields) {
    fields.allow_only({"source", "destination", "type", "destination_type"});
    TensorOrder order;
    order.source = layout(fields, "source");
    order.destination = layout(fields, "destination");
    order.types.source = fields.word("type", kElementTypeWords, ElementType::kFloat32);
    order.types.destination =
        fields.word("destination_type", kElementTypeWords, order.types.source);
    question_.tensors.push_back(std::move(order));
  }

  void read_links(const Json& json) {
    Result<Links> links = parse_links(json, "links", {});
    if (links.ok()) {
      question_.links = std::move(links).value();
    } else {
      failure_ = links.status();
    }
  }

  DraftQuestion question_;
  std::map<std::string, std::shared_ptr<const Layout>> layouts_;
  Status failure_;
};

}  // namespace

Result<DraftQuestion> parse_draft_question(std::string_view json) {
  Result<Json> document =
      present::parse_document(json, kQuestionFormat, kQuestionVersion, kQuestionNesting);
  if (!document.ok()) return document.status();
  return QuestionReader().read(*document);
}

}  // namespace hetcomm::reshard
