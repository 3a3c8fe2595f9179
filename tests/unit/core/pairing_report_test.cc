// The report on the pairings of two ranks:
//   - every pairing has one line and one JSON entry, with distance, rate and its share of the
//     device's NICs;
//   - each verdict has its reason: the transport's reason, fabrics, subnets, HETCOMM_RAILS, a
//     faster kind, or a recent failure that has not expired;
//   - NICs that no transport uses are listed with the reason, and each NIC is listed once;
//   - names that the peer chose cannot break a line.
#include "src/core/job/paths/pairing_report.h"

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/machines.h"
#include "topology/read/machine_file.h"

namespace hetcomm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kRate = 200000;

Pairing pairing(const std::string& transport, const std::string& nic, const std::string& peer) {
  return {.kind = transport.substr(0, transport.find('#')),
          .transport = transport,
          .nic = nic,
          .peer = peer,
          .port = {.mbit_per_s = kRate, .subnets = {}, .fabric = {}},
          .to = {.mbit_per_s = kRate, .subnets = {}, .fabric = {}},
          .reach = {},
          .score_us = 12.5};
}

// Returns the report on the machine's accelerator 0.
PairingReport report_on(const std::string& machine) {
  Result<topology::Machine> read = topology::read_machine_file(machine_path(machine + ".xml"));
  EXPECT_TRUE(read.ok()) << read.status().text();
  PairingReport report{.rank = 1,
                       .peer = 2,
                       .device = 3,
                       .device_name = "a device",
                       .most_rails = 2,
                       .pairings = {},
                       .machine = read.value(),
                       .order = {}};
  report.order = topology::assign_nics(report.machine, {}).accelerators[0];
  return report;
}

std::string first_nic(const PairingReport& report) {
  return report.machine.nics[static_cast<size_t>(report.order[0].nic)].name();
}

// Returns the table's line that contains |text|, or an empty string if there is not exactly one.
std::string line_with(const PairingReport& report, const std::string& text) {
  const std::string all = to_text(report);
  const size_t at = all.find(text);
  if (at == std::string::npos || all.find(text, at + 1) != std::string::npos) return {};
  const size_t begin = all.rfind('\n', at) + 1;
  return all.substr(begin, all.find('\n', at) - begin);
}

TEST(PairingReport, ShowsTheDevicesShareOfANic) {
  PairingReport report = report_on("eight_nics");
  report.pairings.push_back(pairing("rdma", first_nic(report), "rdma#1"));
  report.pairings.back().role = PairingRole::kPaired;
  report.pairings.back().mbit_per_s = 100000;
  report.pairings.back().in_use = true;
  const std::string line = line_with(report, "paired, for 100 Gbit/s; in use");
  for (const char* const cell : {"switch", "200 Gbit/s", "rdma#1", "12.5 us"}) {
    EXPECT_THAT(line, HasSubstr(cell));
  }
  EXPECT_THAT(line, HasSubstr(first_nic(report)));
  EXPECT_THAT(to_text(report), HasSubstr("rank 1 with rank 2 for data of device 3 (a device)"));
  const auto json = nlohmann::json::parse(to_json(report));
  ASSERT_EQ(json["pairings"].size(), 1U);
  EXPECT_EQ(json["pairings"][0]["distance"], "switch");
  EXPECT_EQ(json["pairings"][0]["share_mbit_per_s"], report.order[0].share_mbit_per_s);
  EXPECT_EQ(json["pairings"][0]["role"], "paired");
  EXPECT_EQ(json["pairings"][0]["planned_mbit_per_s"], 100000);
  EXPECT_EQ(json["pairings"][0]["joined"], "maybe");
}

TEST(PairingReport, EveryPairingStatesTheReasonForItsRole) {
  PairingReport report = report_on("eight_nics");
  report.pairings.push_back(pairing("rdma", "", "first"));
  report.pairings.back().role = PairingRole::kPaired;
  report.pairings.back().port.subnets = report.pairings.back().to.subnets = {"10.0.0.0/8"};
  report.pairings.push_back(pairing("rdma", "", "elsewhere"));
  report.pairings.back().port.subnets = {"10.0.0.0/8"};
  report.pairings.push_back(pairing("rdma#1", "", "foreign"));
  report.pairings.back().port.fabric = "red";
  report.pairings.back().to.fabric = "blue";
  report.pairings.push_back(pairing("rdma#1", "", "spare"));
  report.pairings.push_back(pairing("rdma#1", "", "stand-in"));
  report.pairings.back().role = PairingRole::kSubstitute;
  report.pairings.back().cooling = true;
  report.pairings.push_back(pairing("tcp", "", "slow"));
  report.pairings.back().role = PairingRole::kPaired;
  report.pairings.push_back(pairing("shm", "", "apart"));
  report.pairings.back().reach = Status(Code::kUnreachable, "another host");
  EXPECT_THAT(line_with(report, " elsewhere "), HasSubstr("no subnet or fabric joins the two"));
  EXPECT_THAT(line_with(report, " foreign "), HasSubstr("fabrics 'red' and 'blue' are not joined"));
  EXPECT_THAT(line_with(report, " spare "), HasSubstr("carry all that the slower side can"));
  EXPECT_THAT(line_with(report, " stand-in "), HasSubstr("stands in for one that failed"));
  EXPECT_THAT(line_with(report, " stand-in "), HasSubstr("is tried again later"));
  EXPECT_THAT(line_with(report, " slow "), HasSubstr("stands by: rdma is quicker"));
  EXPECT_THAT(line_with(report, " apart "), HasSubstr("no: another host"));
  report.most_rails = 1;
  EXPECT_THAT(line_with(report, " spare "), HasSubstr("HETCOMM_RAILS=1 are paired already"));
  report.pairings[4].hopeless = true;
  EXPECT_THAT(line_with(report, " stand-in "), HasSubstr("is tried every ten minutes"));
  EXPECT_EQ(nlohmann::json::parse(to_json(report))["pairings"][4]["hopeless"], true);
}

TEST(PairingReport, NicsThatAreLeftOrRefusedStateTheReason) {
  PairingReport report = report_on("eight_nics");
  const std::string own = first_nic(report);
  const std::string left = report.machine.nics[static_cast<size_t>(report.order[1].nic)].name();
  const std::string refused = report.machine.nics[static_cast<size_t>(report.order[2].nic)].name();
  report.pairings.push_back(pairing("rdma", own, "own"));
  report.pairings.push_back(pairing("rdma", left, "another's"));
  report.left_nics = {left};
  report.refusals = {{.nic = refused, .why = "tcp: it answers for others"}};
  EXPECT_THAT(line_with(report, " another's "), HasSubstr("left to another device of this job"));
  EXPECT_THAT(line_with(report, " own "), Not(HasSubstr("another device")));
  EXPECT_THAT(line_with(report, refused), HasSubstr("not used: tcp: it answers for others"));
}

TEST(PairingReport, UnusedNicsAreListedOnceWithTheReason) {
  PairingReport report = report_on("nic_down");
  report.pairings.push_back(pairing("rdma", first_nic(report), "rdma"));
  report.pairings.push_back(pairing("rdma", first_nic(report), "rdma#1"));
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["idle_nics"].size(), report.machine.nics.size() - 1);
  for (const auto& nic : json["idle_nics"]) EXPECT_NE(nic["nic"], first_nic(report));
  EXPECT_THAT(to_text(report), HasSubstr("not used: it is down"));
  const std::string rails = "HETCOMM_RAILS=2";
  EXPECT_EQ(to_text(report).find(rails) != std::string::npos, report.order.size() > 2);
}

TEST(PairingReport, NicsExcludedByARuleAreMarked) {
  PairingReport report = report_on("four_nics");
  const Result<topology::NicRules> rules = topology::NicRules::parse("^eno1");
  ASSERT_TRUE(rules.ok());
  report.order = topology::assign_nics(report.machine, rules.value()).accelerators[0];
  EXPECT_THAT(line_with(report, "eno1"), HasSubstr("HETCOMM_NIC leaves it out"));
}

TEST(PairingReport, ControlCharactersInNamesCannotBreakALine) {
  PairingReport report = report_on("one_nic");
  report.pairings.push_back(pairing("rdma", "", "a\nb\x1b[31m"));
  const std::string text = to_text(report);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\x1b'), 0);
  EXPECT_THAT(text, Not(HasSubstr("a\nb")));
  EXPECT_FALSE(nlohmann::json::parse(to_json(report), nullptr, false).is_discarded());
}

TEST(PairingReport, ReportCoversAMachineWithoutNics) {
  PairingReport report = report_on("one_nic");
  report.machine = {};
  report.order = {};
  report.pairings.push_back(pairing("shm", "", "shm"));
  EXPECT_THAT(to_text(report), HasSubstr(" shm "));
  EXPECT_EQ(nlohmann::json::parse(to_json(report))["idle_nics"].size(), 0U);
}

}  // namespace
}  // namespace hetcomm
