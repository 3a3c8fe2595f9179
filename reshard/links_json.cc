#include "reshard/links_json.h"

#include <utility>

#include <fmt/core.h>

#include "reshard/layout.h"
#include "topology/links/link_model_json.h"

namespace hetcomm::reshard {
namespace {

using present::Fields;
using present::Json;

std::vector<std::string> texts(Fields& fields, const char* name) {
  std::vector<std::string> found;
  fields.each(
      name,
      [&](const Json& json, const std::string& path) {
        if (!json.is_string()) return fields.fail_at(path, "is no text");
        found.push_back(json.get<std::string>());
      },
      kMaxParts);
  return found;
}

}  // namespace

Result<Links> parse_links(const Json& json, const std::string& path,
                          std::vector<std::string> hosts) {
  Status failure;
  Fields fields(json, path, failure);
  fields.allow_only({"model", "hosts", "nics"});
  const Json* const model = fields.find("model");
  if (model == nullptr) fields.fail("model", "is missing");
  if (fields.has("hosts")) hosts = texts(fields, "hosts");
  std::vector<std::string> nics = texts(fields, "nics");
  if (failure.ok() && !nics.empty() && nics.size() != hosts.size()) {
    fields.fail("nics", fmt::format("has {} elements, and {} {}", nics.size(),
                                    fields.has("hosts") ? "hosts has" : "the number of ranks is",
                                    hosts.size()));
  }
  if (!failure.ok()) return failure;
  nics.resize(hosts.size());
  Result<topology::LinkModel> parsed = topology::parse_link_model(model->dump());
  if (!parsed.ok()) return parsed.status().annotate(path + ".model");
  std::vector<RankEnd> ends;
  for (size_t i = 0; i < hosts.size(); ++i) ends.push_back({std::move(hosts[i]), nics[i]});
  Result<Links> links = Links::create(std::move(parsed).value(), ends);
  if (!links.ok()) return links.status().annotate(path);
  return links;
}

}  // namespace hetcomm::reshard
