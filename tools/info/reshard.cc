#include "tools/info/reshard.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <hetcomm/hetcomm.h>

#include "src/present/json_nesting.h"
#include "tools/common/plan_answer.h"
#include "tools/common/reshard_cases.h"
#include "tools/info/files.h"
#include "tools/info/handles.h"

namespace hetcomm_info {
namespace {

using Json = nlohmann::json;
namespace present = hetcomm::present;

// Reads the link model and places |ranks| ranks on its hosts, one host after the other. Returns the
// model and the placement as the member "links" of a question.
Json links_of(const ReshardQuestion& question, uint64_t ranks) {
  const std::string& name = question.model;
  const std::string text = read_file(name);
  constexpr int kMaxNesting = 16;  // limits the memory use; no link model is nested deeper
  Json model =
      present::nests_deeper_than(kMaxNesting, text) ? Json() : Json::parse(text, nullptr, false);
  std::vector<std::string> labels;
  if (model.is_object() && model.contains("hosts") && model["hosts"].is_array()) {
    for (const Json& host : model["hosts"]) {
      if (!host.is_object() || !host.contains("label") || !host["label"].is_string()) {
        throw std::runtime_error(fmt::format("{}: a host has no label", name));
      }
      labels.push_back(host["label"].get<std::string>());
    }
  }
  if (labels.empty()) throw std::runtime_error(fmt::format("{} is no link model", name));
  Json hosts = Json::array();
  for (uint64_t rank = 0; rank < ranks; ++rank) {
    const size_t host = rank / static_cast<uint64_t>(question.ranks_per_host);
    if (host >= labels.size()) {
      throw std::runtime_error(
          fmt::format("{} has {} hosts, and rank {} would be on one more: use --ranks-per-host",
                      name, labels.size(), rank));
    }
    hosts.push_back(labels[host]);
  }
  return {{"model", std::move(model)}, {"hosts", std::move(hosts)}};
}

std::string draft(const ReshardQuestion& question, int32_t form) {
  tools::ReshardSide sides[2];
  for (size_t i = 0; i < 2; ++i) {
    const std::string wrong = tools::parse_side(question.layouts[i], &sides[i]);
    if (!wrong.empty()) throw std::runtime_error(wrong);
  }
  const uint64_t first = question.same_ranks ? 0 : sides[0].ranks();
  const tools::LayoutHandle source(question.shape, sides[0],
                                   tools::ranks_from(0, sides[0].ranks()));
  const tools::LayoutHandle destination(
      question.shape, sides[1], tools::ranks_from(static_cast<int32_t>(first), sides[1].ranks()));
  Json document = tools::draft_question(source, destination, question.strategy);
  document["prove"] = true;
  if (!question.model.empty()) {
    const uint64_t ranks = std::max(sides[0].ranks(), first + sides[1].ranks());
    document["links"] = links_of(question, ranks);
  }
  return tools::plan_answer(hetcomm_draft_reshard, document.dump(), form);
}

}  // namespace

int print_reshard(const ReshardQuestion& question, const std::string& format) {
  try {
    std::fputs(draft(question, tools::plan_form(format)).c_str(), stdout);
    return kSuccess;
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "hetcomm_info: %s\n", error.what());
    return kFailure;
  }
}

}  // namespace hetcomm_info
