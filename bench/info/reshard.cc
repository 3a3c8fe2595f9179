#include "bench/info/reshard.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <hetcomm/hetcomm.h>

#include "bench/info/handles.h"
#include "bench/reshard_cases.h"

namespace hetcomm_info {
namespace {

std::string read_file(const std::string& name) {
  std::ifstream file(name, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw std::runtime_error(fmt::format("{} cannot be read", name));
  return text.str();
}

// Returns the labels of a link model's hosts, in the model's order.
std::vector<std::string> hosts_of(const std::string& model, const std::string& name) {
  const auto json = nlohmann::json::parse(model, nullptr, false);
  std::vector<std::string> labels;
  if (json.is_object() && json.contains("hosts") && json["hosts"].is_array()) {
    for (const auto& host : json["hosts"]) {
      if (!host.is_object() || !host.contains("label") || !host["label"].is_string()) {
        throw std::runtime_error(fmt::format("{}: a host has no label", name));
      }
      labels.push_back(host["label"].get<std::string>());
    }
  }
  if (labels.empty()) throw std::runtime_error(fmt::format("{} is no link model", name));
  return labels;
}

std::string draft(const ReshardQuestion& question, int32_t format) {
  bench::ReshardSide sides[2];
  for (size_t i = 0; i < 2; ++i) {
    const std::string wrong = bench::parse_side(question.layouts[i], &sides[i]);
    if (!wrong.empty()) throw std::runtime_error(wrong);
  }
  const uint64_t first = question.same_ranks ? 0 : sides[0].ranks();
  const bench::LayoutHandle source(question.shape, sides[0],
                                   bench::ranks_from(0, sides[0].ranks()));
  const bench::LayoutHandle destination(
      question.shape, sides[1], bench::ranks_from(static_cast<int32_t>(first), sides[1].ranks()));
  const hetcomm_reshard_tensor_t tensor{source.get(), destination.get(), HETCOMM_FLOAT32,
                                        HETCOMM_FLOAT32};
  hetcomm_reshard_options_t options{};
  options.struct_size = sizeof(options);
  options.strategy = bench::strategy_number(question.strategy);
  options.prove = 1;
  std::string model;
  std::vector<std::string> labels;
  std::vector<const char*> hosts;
  hetcomm_reshard_links_t links{};
  links.struct_size = sizeof(links);
  if (!question.model.empty()) {
    model = read_file(question.model);
    labels = hosts_of(model, question.model);
    const uint64_t ranks = std::max(sides[0].ranks(), first + sides[1].ranks());
    for (uint64_t rank = 0; rank < ranks; ++rank) {
      const size_t host = rank / static_cast<uint64_t>(question.ranks_per_host);
      if (host >= labels.size()) {
        throw std::runtime_error(
            fmt::format("{} has {} hosts, and rank {} would be on one more: use --ranks-per-host",
                        question.model, labels.size(), rank));
      }
      hosts.push_back(labels[host].c_str());
    }
    links.model = model.c_str();
    links.hosts = hosts.data();
    links.rank_count = hosts.size();
  }
  size_t size = 0;
  std::string text;
  for (int i = 0; i < 2; ++i) {
    text.resize(size);
    if (hetcomm_reshard_draft(&tensor, 1, &options, question.model.empty() ? nullptr : &links,
                              format, text.size(), text.data(), &size) != HETCOMM_OK) {
      throw std::runtime_error(hetcomm_last_error());
    }
  }
  text.resize(size - 1);
  return text;
}

}  // namespace

int print_reshard(const ReshardQuestion& question, const std::string& format) {
  const int32_t form = format == "json"  ? HETCOMM_RESHARD_JSON
                       : format == "svg" ? HETCOMM_RESHARD_SVG
                                         : HETCOMM_RESHARD_TEXT;
  try {
    std::fputs(draft(question, form).c_str(), stdout);
    return kSuccess;
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "hetcomm_info: %s\n", error.what());
    return kFailure;
  }
}

}  // namespace hetcomm_info
