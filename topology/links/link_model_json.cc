#include "topology/links/link_model_json.h"

#include <map>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "src/present/json_fields.h"

namespace hetcomm::topology {
namespace {

using present::Fields;
using present::Json;
using present::parse_document;
// This type keeps the order in which fields are added, which is the order in topology/README.md.
using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kModelFormat = "hetcomm link model";
constexpr std::string_view kMeasurementsFormat = "hetcomm link measurements";
constexpr uint64_t kLinkModelVersion = 1;
constexpr int kMaxLinkModelNesting = 8;

constexpr const char* kResourceKinds[] = {"memory", "pcie", "nic", "uplink", "trunk"};

std::string dump(const OrderedJson& json, bool compact) {
  return json.dump(compact ? -1 : 2, ' ', /*ensure_ascii=*/false,
                   OrderedJson::error_handler_t::replace) +
         (compact ? "" : "\n");
}

// --- writing ---------------------------------------------------------------------------------

OrderedJson names_of(const LinkModel& model, const std::vector<int>& crossed) {
  OrderedJson names = OrderedJson::array();
  for (const int index : crossed) {
    names.push_back(model.resources[static_cast<size_t>(index)].name);
  }
  return names;
}

OrderedJson write_host(const LinkModel& model, const LinkHost& host) {
  OrderedJson out;
  out["label"] = host.label;
  out["cluster"] = model.clusters[static_cast<size_t>(host.cluster)];
  if (host.latency_ns != 0) out["latency_ns"] = host.latency_ns;
  if (!host.inside.empty()) out["inside"] = names_of(model, host.inside);
  OrderedJson nics = OrderedJson::array();
  for (const LinkNic& nic : host.nics) {
    OrderedJson entry;
    if (!nic.name.empty()) entry["name"] = nic.name;
    entry["out"] = names_of(model, nic.out);
    entry["in"] = names_of(model, nic.in);
    nics.push_back(std::move(entry));
  }
  if (!nics.empty()) out["nics"] = std::move(nics);
  return out;
}

OrderedJson write_paths(const LinkModel& model) {
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < model.paths.size(); ++i) {
    const ClusterPath& path = model.paths[i];
    if (!path.exists) continue;
    OrderedJson entry;
    entry["from"] = model.clusters[i / model.clusters.size()];
    entry["to"] = model.clusters[i % model.clusters.size()];
    entry["latency_ns"] = path.latency_ns;
    if (path.single_bytes_per_s != 0) entry["single_bytes_per_s"] = path.single_bytes_per_s;
    if (!path.resources.empty()) entry["resources"] = names_of(model, path.resources);
    out.push_back(std::move(entry));
  }
  return out;
}

template <typename Measured>
OrderedJson write_ends(const Measured& measured, const char* name, uint64_t value) {
  OrderedJson out;
  out["from"] = measured.from;
  out["to"] = measured.to;
  out[name] = value;
  return out;
}

// --- reading ---------------------------------------------------------------------------------

class ModelReader {
 public:
  Result<LinkModel> read(const Json& document) {
    Fields fields(document, "", failure_);
    fields.allow_only({"format", "version", "source", "resources", "clusters", "hosts", "paths"});
    model_.source = fields.text("source");
    fields.each(
        "resources",
        [this](const Json& json, const std::string& path) {
          read_resource(Fields(json, path, failure_));
        },
        kMaxLinkResources);
    fields.each(
        "clusters",
        [this](const Json& json, const std::string& path) {
          Fields entry(json, path, failure_);
          entry.allow_only({"name"});
          clusters_.emplace(entry.text("name"), static_cast<int>(model_.clusters.size()));
          model_.clusters.push_back(entry.text("name"));
        },
        kMaxLinkClusters);
    model_.paths.resize(model_.clusters.size() * model_.clusters.size());
    fields.each(
        "hosts",
        [this](const Json& json, const std::string& path) {
          read_host(Fields(json, path, failure_));
        },
        kMaxLinkHosts);
    fields.each(
        "paths",
        [this](const Json& json, const std::string& path) {
          read_path(Fields(json, path, failure_));
        },
        kMaxLinkClusters * kMaxLinkClusters);
    if (!failure_.ok()) return failure_;
    HETCOMM_RETURN_IF_ERROR(check(model_));
    normalize(model_);
    return std::move(model_);
  }

 private:
  void read_resource(Fields fields) {
    fields.allow_only({"name", "kind", "bytes_per_s"});
    LinkResource resource;
    resource.name = fields.text("name");
    if (!fields.has("kind")) fields.fail("kind", "is missing");
    resource.kind = fields.word("kind", kResourceKinds, ResourceKind::kNic);
    resource.bytes_per_s = fields.number("bytes_per_s", kMaxBytesPerS);
    resources_.emplace(resource.name, static_cast<int>(model_.resources.size()));
    model_.resources.push_back(std::move(resource));
  }

  // Reads the field |name|, a list of names of resources. Returns the indices of the resources.
  std::vector<int> crossed(Fields& fields, const char* name) {
    std::vector<int> indices;
    fields.each(
        name,
        [&](const Json& json, const std::string& path) {
          const auto found =
              json.is_string() ? resources_.find(json.get<std::string>()) : resources_.end();
          if (found == resources_.end()) return fields.fail_at(path, "names no resource");
          indices.push_back(found->second);
        },
        kMaxCrossed);
    return indices;
  }

  int cluster(Fields& fields, const char* name) {
    const std::string wanted = fields.text(name);
    const auto found = clusters_.find(wanted);
    if (found != clusters_.end()) return found->second;
    fields.fail(name, fmt::format("is '{}', which is none of the clusters", printable(wanted)));
    return 0;
  }

  void read_host(Fields fields) {
    fields.allow_only({"label", "cluster", "latency_ns", "inside", "nics"});
    LinkHost host;
    host.label = fields.text("label");
    host.cluster = cluster(fields, "cluster");
    host.latency_ns = fields.number("latency_ns", kMaxLatencyNs);
    host.inside = crossed(fields, "inside");
    fields.each(
        "nics",
        [&](const Json& json, const std::string& path) {
          Fields entry(json, path, failure_);
          entry.allow_only({"name", "out", "in"});
          host.nics.push_back({entry.text("name"), crossed(entry, "out"), crossed(entry, "in")});
        },
        kMaxLinkNics);
    model_.hosts.push_back(std::move(host));
  }

  void read_path(Fields fields) {
    fields.allow_only({"from", "to", "latency_ns", "single_bytes_per_s", "resources"});
    const int from = cluster(fields, "from");
    const int to = cluster(fields, "to");
    if (!fields.failure().ok()) return;
    ClusterPath& path = model_.path(from, to);
    if (path.exists) return fields.fail("", "is the second one of these clusters");
    path.exists = true;
    path.latency_ns = fields.number("latency_ns", kMaxLatencyNs);
    path.single_bytes_per_s = fields.number("single_bytes_per_s", kMaxBytesPerS);
    if (fields.has("single_bytes_per_s") && path.single_bytes_per_s == 0) {
      fields.fail("single_bytes_per_s", "is 0");
    }
    path.resources = crossed(fields, "resources");
  }

  LinkModel model_;
  std::map<std::string, int> resources_;
  std::map<std::string, int> clusters_;
  Status failure_;
};

class MeasurementsReader {
 public:
  Result<LinkMeasurements> read(const Json& document) {
    Fields fields(document, "", failure_);
    fields.allow_only({"format", "version", "source", "hosts", "latencies", "rounds"});
    measured_.source = fields.text("source");
    fields.each(
        "hosts",
        [this](const Json& json, const std::string& path) {
          Fields host(json, path, failure_);
          host.allow_only({"label", "cluster"});
          measured_.hosts.push_back(host.text("label"));
          if (host.has("cluster")) measured_.clusters.push_back(host.text("cluster"));
        },
        kMaxLinkHosts);
    fields.each(
        "latencies",
        [this](const Json& json, const std::string& path) {
          Fields entry(json, path, failure_);
          entry.allow_only({"from", "to", "latency_ns"});
          measured_.latencies.push_back(
              {host(entry, "from"), host(entry, "to"), entry.number("latency_ns", kMaxLatencyNs)});
        },
        kMaxMeasuredTransfers);
    fields.each(
        "rounds",
        [this](const Json& json, const std::string& path) {
          read_round(Fields(json, path, failure_));
        },
        kMaxMeasuredTransfers);
    if (!failure_.ok()) return failure_;
    HETCOMM_RETURN_IF_ERROR(check(measured_));
    return std::move(measured_);
  }

 private:
  int host(Fields& fields, const char* name) {
    if (!fields.has(name)) fields.fail(name, "is missing");
    const auto most = static_cast<uint64_t>(measured_.hosts.size());
    return static_cast<int>(fields.number(name, most > 0 ? most - 1 : 0));
  }

  void read_round(Fields fields) {
    fields.allow_only({"transfers"});
    std::vector<MeasuredTransfer>& round = measured_.rounds.emplace_back();
    fields.each(
        "transfers",
        [&](const Json& json, const std::string& path) {
          Fields entry(json, path, failure_);
          entry.allow_only({"from", "to", "bytes_per_s"});
          round.push_back(
              {host(entry, "from"), host(entry, "to"), entry.number("bytes_per_s", kMaxBytesPerS)});
        },
        kMaxMeasuredTransfers);
  }

  LinkMeasurements measured_;
  Status failure_;
};

Status check_size(std::string_view json) {
  if (json.size() <= kMaxLinkModelBytes) return {};
  return {Code::kInvalidArgument,
          fmt::format("has {} bytes; {} are the most", json.size(), kMaxLinkModelBytes)};
}

}  // namespace

std::string to_json(const LinkModel& model, bool compact) {
  OrderedJson out;
  out["format"] = kModelFormat;
  out["version"] = kLinkModelVersion;
  if (!model.source.empty()) out["source"] = model.source;
  out["resources"] = OrderedJson::array();
  for (const LinkResource& resource : model.resources) {
    OrderedJson entry;
    entry["name"] = resource.name;
    entry["kind"] = kResourceKinds[static_cast<size_t>(resource.kind)];
    entry["bytes_per_s"] = resource.bytes_per_s;
    out["resources"].push_back(std::move(entry));
  }
  out["clusters"] = OrderedJson::array();
  for (const std::string& cluster : model.clusters) {
    OrderedJson entry;
    entry["name"] = cluster;
    out["clusters"].push_back(std::move(entry));
  }
  out["hosts"] = OrderedJson::array();
  for (const LinkHost& host : model.hosts) out["hosts"].push_back(write_host(model, host));
  out["paths"] = write_paths(model);
  return dump(out, compact);
}

bool claims_to_be_link_model(std::string_view json) {
  if (json.size() > kMaxLinkModelBytes) return false;
  // Only a link model contains this string.
  return json.find(fmt::format("\"{}\"", kModelFormat)) != std::string_view::npos;
}

Result<LinkModel> parse_link_model(std::string_view json) {
  HETCOMM_RETURN_IF_ERROR(check_size(json));
  Result<Json> document =
      parse_document(json, kModelFormat, kLinkModelVersion, kMaxLinkModelNesting);
  if (!document.ok()) return document.status();
  return ModelReader().read(*document);
}

std::string to_json(const LinkMeasurements& measured) {
  OrderedJson out;
  out["format"] = kMeasurementsFormat;
  out["version"] = kLinkModelVersion;
  if (!measured.source.empty()) out["source"] = measured.source;
  out["hosts"] = OrderedJson::array();
  for (size_t i = 0; i < measured.hosts.size(); ++i) {
    OrderedJson host;
    host["label"] = measured.hosts[i];
    if (!measured.clusters.empty()) host["cluster"] = measured.clusters[i];
    out["hosts"].push_back(std::move(host));
  }
  out["latencies"] = OrderedJson::array();
  for (const MeasuredLatency& each : measured.latencies) {
    out["latencies"].push_back(write_ends(each, "latency_ns", each.latency_ns));
  }
  out["rounds"] = OrderedJson::array();
  for (const std::vector<MeasuredTransfer>& round : measured.rounds) {
    OrderedJson transfers = OrderedJson::array();
    for (const MeasuredTransfer& each : round) {
      transfers.push_back(write_ends(each, "bytes_per_s", each.bytes_per_s));
    }
    OrderedJson entry;
    entry["transfers"] = std::move(transfers);
    out["rounds"].push_back(std::move(entry));
  }
  return dump(out, false);
}

Result<LinkMeasurements> parse_link_measurements(std::string_view json) {
  HETCOMM_RETURN_IF_ERROR(check_size(json));
  Result<Json> document =
      parse_document(json, kMeasurementsFormat, kLinkModelVersion, kMaxLinkModelNesting);
  if (!document.ok()) return document.status();
  return MeasurementsReader().read(*document);
}

}  // namespace hetcomm::topology
