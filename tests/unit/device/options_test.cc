// Options for a simulated device: every documented form parses, and error texts name the fault.
#include "devices/sim/options.h"

#include <string>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

SimOptions parsed(std::string_view text) {
  const Result<SimOptions> options = parse_sim_options(text);
  EXPECT_TRUE(options.ok()) << text << ": " << options.status().text();
  return options.ok() ? options.value() : SimOptions{};
}

TEST(SimOptions, EmptyTextGivesTheDefaults) {
  const SimOptions options = parsed("");
  EXPECT_EQ(options.bandwidth_bytes_per_s, 0u);
  EXPECT_EQ(options.latency_ns, 0u);
  EXPECT_EQ(options.memory_bytes, uint64_t{4} << 30);
}

TEST(SimOptions, OptionsParseInAnyOrder) {
  for (const char* const text :
       {"bandwidth=10G:latency=2us:memory=1G", "memory=1G:bandwidth=10G:latency=2us"}) {
    const SimOptions options = parsed(text);
    EXPECT_EQ(options.bandwidth_bytes_per_s, uint64_t{10} << 30);
    EXPECT_EQ(options.latency_ns, 2000u);
    EXPECT_EQ(options.memory_bytes, uint64_t{1} << 30);
  }
}

TEST(SimOptions, PciAddressParsesAtAnyPosition) {
  for (const char* const text : {"pci=0000:3b:00.1:memory=1G", "memory=1G:pci=0000:3b:00.1",
                                 "memory=1G:pci=0000:3b:00.1:latency=2us"}) {
    EXPECT_EQ(parsed(text).pci_address, "0000:3b:00.1") << text;
    EXPECT_EQ(parsed(text).memory_bytes, uint64_t{1} << 30) << text;
  }
  EXPECT_EQ(parsed("pci=3b:00.1").pci_address, "3b:00.1");
  EXPECT_EQ(parsed("").pci_address, "");
}

TEST(SimOptions, NumaNodeParses) {
  EXPECT_EQ(parsed("node=0").numa_node, 0u);
  EXPECT_EQ(parsed("pci=3b:00.1:node=3").numa_node, 3u);
  EXPECT_EQ(parsed("").numa_node, SimOptions::kNoNode);
}

TEST(SimOptions, ZeroMeansNoLimit) {
  EXPECT_EQ(parsed("bandwidth=0").bandwidth_bytes_per_s, 0u);
  EXPECT_EQ(parsed("latency=0").latency_ns, 0u);
}

TEST(SimOptions, ErrorsNameTheFaultyOption) {
  const struct {
    const char* text;
    const char* named;
  } cases[] = {
      {"speed=10G", "'speed'"},
      {"bandwidth", "'bandwidth' has no value"},
      {"bandwidth=", "'bandwidth'"},
      {"bandwidth=fast", "'fast'"},
      {"bandwidth=10", "was a unit meant"},
      {"bandwidth=-1G", "'bandwidth'"},
      {"latency=11s", "'latency=11s'"},
      {"latency=inf", "'latency=inf'"},
      {"memory=0", "'memory=0'"},
      {"node=-1", "'node'"},
      {"node=1024", "the number of a NUMA node"},
      {"memory=1", "4K to"},
      {"memory=1G:memory=2G", "'memory' is given twice"},
      {"memory=1G:", "missing"},
      {":memory=1G", "''"},
      {"memory=1G::latency=1us", "''"},
      {"memory=1G,latency=1us", "'1G,latency=1us'"},
      {"Memory=1G", "'Memory'"},
      {"pci=", "is no PCI address"},
      {"pci", "'pci' is no option"},
      {"pci=3b:00", "is no PCI address"},
      {"pci=3b:00.", "is no PCI address"},
      {"pci=3b:00.12", "is no PCI address"},
      {"pci=3b:00.1memory=1G", "is no PCI address"},
      {"pci=zz:00.1", "is no PCI address"},
      {"pci=3b:00.1:", "missing"},
      {"pci=3b:00.1:pci=3b:00.2", "'pci' is given twice"},
      {"memory =1G", "'memory '"},
  };
  for (const auto& [text, named] : cases) {
    const Result<SimOptions> options = parse_sim_options(text);
    EXPECT_EQ(options.status().code(), Code::kInvalidArgument) << text;
    EXPECT_NE(options.status().text().find(named), std::string_view::npos)
        << text << ": " << options.status().text();
  }
}

}  // namespace
}  // namespace hetcomm
