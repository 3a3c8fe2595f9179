#include "src/core/job/paths/pairing_report.h"

#include <algorithm>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "src/base/text.h"
#include "src/present/rates.h"
#include "topology/machine/distance.h"
#include "topology/machine/labels.h"

namespace hetcomm {
namespace {

using Json = nlohmann::ordered_json;

const char* word_of(PairingRole role) {
  switch (role) {
    case PairingRole::kPaired:
      return "paired";
    case PairingRole::kSubstitute:
      return "substitute";
    case PairingRole::kUnused:
      break;
  }
  return "unused";
}

const char* word_of(topology::Reach reach) {
  switch (reach) {
    case topology::Reach::kYes:
      return "yes";
    case topology::Reach::kMaybe:
      return "maybe";
    case topology::Reach::kNo:
      break;
  }
  return "no";
}

// Returns the NIC called |name| in the device's order of NICs; null if the order does not include
// it.
const topology::NicChoice* find_choice(const PairingReport& report, const std::string& name) {
  const auto found = std::find_if(
      report.order.begin(), report.order.end(), [&](const topology::NicChoice& choice) {
        const topology::Nic& nic = report.machine.nics[static_cast<size_t>(choice.nic)];
        return !name.empty() && (nic.name() == name || nic.interface == name);
      });
  return found != report.order.end() ? &*found : nullptr;
}

// Returns whether |pairing|'s own port is known to reach another port of the peer.
bool has_surer(const PairingReport& report, const Pairing& pairing) {
  return std::any_of(report.pairings.begin(), report.pairings.end(), [&](const Pairing& other) {
    return other.kind == pairing.kind && other.transport == pairing.transport && other.reach.ok() &&
           topology::reach(other.port, other.to) == topology::Reach::kYes;
  });
}

// Returns the reason why a connectable pairing has no share of the load.
std::string why_unused(const PairingReport& report, const Pairing& pairing) {
  const auto paired =
      std::count_if(report.pairings.begin(), report.pairings.end(), [&](const Pairing& other) {
        return other.kind == pairing.kind && other.role == PairingRole::kPaired;
      });
  if (topology::reach(pairing.port, pairing.to) == topology::Reach::kNo) {
    return fmt::format("the fabrics '{}' and '{}' are not joined", printable(pairing.port.fabric),
                       printable(pairing.to.fabric));
  }
  if (pairing.port.last_resort || pairing.to.last_resort) {
    return "a last resort, for peers that nothing else reaches";
  }
  const bool is_left = std::find(report.left_nics.begin(), report.left_nics.end(), pairing.nic) !=
                       report.left_nics.end();
  if (is_left) return "it is left to another device of this job, which uses it first";
  if (topology::reach(pairing.port, pairing.to) == topology::Reach::kMaybe &&
      has_surer(report, pairing)) {
    return "no subnet or fabric joins the two, and others are joined";
  }
  if (static_cast<size_t>(paired) >= report.most_rails) {
    return fmt::format("HETCOMM_RAILS={} are paired already", report.most_rails);
  }
  return "those that are paired carry all that the slower side can";
}

std::string verdict_of(const PairingReport& report, const Pairing& pairing) {
  if (!pairing.reach.ok()) return "no: " + std::string(pairing.reach.text());
  std::string verdict;
  if (pairing.role == PairingRole::kUnused) {
    verdict = "unused: " + why_unused(report, pairing);
  } else if (const std::string& first = report.pairings.front().kind; first != pairing.kind) {
    verdict = fmt::format("stands by: {} is quicker", first);
  } else if (pairing.role == PairingRole::kSubstitute) {
    verdict = "substitute: stands in for one that failed lately";
  } else {
    verdict = "paired";
  }
  if (pairing.role != PairingRole::kUnused && pairing.mbit_per_s != 0) {
    verdict += fmt::format(", for {}", present::rate_text(pairing.mbit_per_s));
  }
  if (pairing.hopeless) {
    verdict += "; failed repeatedly, and is tried every ten minutes while others work";
  } else if (pairing.cooling) {
    verdict += "; failed lately, and is tried again later";
  }
  if (pairing.in_use) verdict += "; in use";
  return verdict;
}

// A NIC of this machine to which no transport of this rank is bound.
struct IdleNic {
  std::string name;
  const topology::NicChoice* choice;  // null: not among the NICs of the device
  uint64_t mbit_per_s;
  std::string why;
};

std::string why_idle(const PairingReport& report, const topology::Nic& nic,
                     const topology::NicChoice* choice) {
  if (nic.state == topology::NicState::kDown) return "it is down";
  if (choice == nullptr && report.order.size() == topology::kMaxNicsOfUser) {
    return fmt::format("{} others are better for this device", topology::kMaxNicsOfUser);
  }
  if (choice == nullptr) {
    return nic.kind == topology::NicKind::kPhysical ? "HETCOMM_NIC leaves it out"
                                                    : "it is virtual or a bridge, and not named";
  }
  const auto refused = std::find_if(report.refusals.begin(), report.refusals.end(),
                                    [&](const NicRefusal& each) { return each.nic == nic.name(); });
  if (refused != report.refusals.end()) return refused->why;
  const auto position = static_cast<size_t>(choice - report.order.data());
  if (position >= report.most_rails) {
    return fmt::format("it is number {} of {} for this device, and HETCOMM_RAILS={}", position + 1,
                       report.order.size(), report.most_rails);
  }
  return "no transport is bound to it: it would add at most a sixteenth to others, or is the only "
         "one";
}

std::vector<IdleNic> idle_nics(const PairingReport& report) {
  std::vector<IdleNic> idle;
  for (const topology::Nic& nic : report.machine.nics) {
    const bool bound =
        std::any_of(report.pairings.begin(), report.pairings.end(), [&](const Pairing& pairing) {
          return pairing.nic == nic.name() ||
                 (!pairing.nic.empty() && pairing.nic == nic.interface);
        });
    if (bound) continue;
    const topology::NicChoice* const choice = find_choice(report, nic.name());
    idle.push_back({nic.name(), choice, nic.mbit_per_s, why_idle(report, nic, choice)});
  }
  return idle;
}

using Row = std::vector<std::string>;

std::string distance_text(const topology::NicChoice* choice) {
  return choice != nullptr ? topology::word_of(choice->distance) : "-";
}

std::string share_text(const topology::NicChoice* choice) {
  const bool known = choice != nullptr && choice->share_mbit_per_s != 0;
  return known ? present::rate_text(choice->share_mbit_per_s) : "-";
}

std::string known_rate(uint64_t mbit_per_s) {
  return mbit_per_s != 0 ? present::rate_text(mbit_per_s) : "-";
}

// Formats the table. The last column is not padded.
std::string draw(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const Row& row : rows) {
    out += " ";
    for (size_t i = 0; i + 1 < row.size(); ++i) out += fmt::format(" {:<{}} ", row[i], widths[i]);
    out += " " + row.back() + "\n";
  }
  return out;
}

std::string name_or_dash(const std::string& name) { return name.empty() ? "-" : printable(name); }

}  // namespace

std::string to_text(const PairingReport& report) {
  std::string out =
      fmt::format("pairings of rank {} with rank {} for data of device {} ({}):\n", report.rank,
                  report.peer, report.device, printable(report.device_name));
  std::vector<Row> rows{
      {"NIC", "distance", "rate", "share", "transport", "peer's", "its rate", "64 KiB", "verdict"}};
  for (const Pairing& pairing : report.pairings) {
    const topology::NicChoice* const choice = find_choice(report, pairing.nic);
    rows.push_back({name_or_dash(pairing.nic), distance_text(choice),
                    known_rate(pairing.port.mbit_per_s), share_text(choice), pairing.transport,
                    name_or_dash(pairing.peer), known_rate(pairing.to.mbit_per_s),
                    fmt::format("{:.1f} us", pairing.score_us), verdict_of(report, pairing)});
  }
  for (const IdleNic& nic : idle_nics(report)) {
    rows.push_back({nic.name, distance_text(nic.choice), known_rate(nic.mbit_per_s),
                    share_text(nic.choice), "-", "-", "-", "-", "not used: " + nic.why});
  }
  return out + draw(rows);
}

std::string to_json(const PairingReport& report) {
  Json pairings = Json::array();
  for (const Pairing& pairing : report.pairings) {
    const topology::NicChoice* const choice = find_choice(report, pairing.nic);
    Json entry{{"transport", pairing.transport}, {"nic", pairing.nic}};
    if (choice != nullptr) {
      entry["distance"] = topology::word_of(choice->distance);
      entry["share_mbit_per_s"] = choice->share_mbit_per_s;
    }
    entry["mbit_per_s"] = pairing.port.mbit_per_s;
    entry["peer_transport"] = pairing.peer;
    entry["peer_mbit_per_s"] = pairing.to.mbit_per_s;
    entry["joined"] = word_of(topology::reach(pairing.port, pairing.to));
    entry["usable"] = pairing.reach.ok();
    entry["estimate_us"] = pairing.score_us;
    entry["role"] = word_of(pairing.role);
    entry["planned_mbit_per_s"] = pairing.mbit_per_s;
    entry["cooling"] = pairing.cooling;
    entry["hopeless"] = pairing.hopeless;
    entry["in_use"] = pairing.in_use;
    entry["verdict"] = verdict_of(report, pairing);
    pairings.push_back(std::move(entry));
  }
  Json idle = Json::array();
  for (const IdleNic& nic : idle_nics(report)) {
    Json entry{{"nic", nic.name}, {"mbit_per_s", nic.mbit_per_s}};
    if (nic.choice != nullptr) entry["distance"] = topology::word_of(nic.choice->distance);
    entry["why"] = nic.why;
    idle.push_back(std::move(entry));
  }
  const Json document{{"rank", report.rank},
                      {"peer", report.peer},
                      {"device", report.device},
                      {"device_name", report.device_name},
                      {"pairings", std::move(pairings)},
                      {"idle_nics", std::move(idle)}};
  return document.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace hetcomm
