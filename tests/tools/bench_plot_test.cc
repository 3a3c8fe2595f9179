// Checks the charts of --plot:
//   * medians, as the axis says; averages only if labelled as averages
//   * one colour for each implementation in all charts, and one line for each setting
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/plot.h"
#include "bench/work.h"

namespace bench {
namespace {

using ::testing::HasSubstr;

Row plotted_row(const std::string& test, const std::string& impl, const std::string& transport) {
  Work work;
  work.workload.test = test;
  work.transport = transport;
  Measurement measured;
  measured.point = {1000, 4};
  measured.iterations = 100;
  measured.messages = 200;  // two senders
  measured.total_us = 4000;
  measured.p50_us = 10;
  return make_row(work, impl, measured);
}

TEST(Plot, MediansAreDrawnAndLabelled) {
  Report report;
  report.rows = {plotted_row("latency", "hetcomm", "shm"),
                 plotted_row("bandwidth", "hetcomm", "shm"),
                 plotted_row("msgrate", "hetcomm", "shm")};
  const std::vector<Panel> panels = panels_of(report);
  ASSERT_EQ(panels.size(), 3U);
  EXPECT_EQ(panels[0].series[0].spots[0].value, 10) << "not the average of 40";
  EXPECT_EQ(panels[1].series[0].spots[0].value, 200) << "2000 bytes in 10 us";
  EXPECT_EQ(panels[2].series[0].spots[0].value, 0.2) << "2 messages in 10 us";
  for (const Panel& panel : panels) EXPECT_THAT(panel.unit, HasSubstr("median of"));
  EXPECT_THAT(render_svg(report), HasSubstr("median of single messages"));
  EXPECT_THAT(render_svg(report), HasSubstr("median of windows"));
}

TEST(Plot, ComparisonDrawsThePrintedMediansOfRounds) {
  Report report;
  report.rounds = 15;
  report.rows = {plotted_row("latency", "hetcomm", "shm")};
  const std::vector<Panel> panels = panels_of(report);
  EXPECT_EQ(panels.at(0).series[0].spots[0].value, 40);
  EXPECT_THAT(panels.at(0).unit, HasSubstr("median of 15 rounds"));
}

TEST(Plot, AverageIsNotLabelledAsAMedian) {
  Report report;
  report.rows = {plotted_row("latency", "iperf3-3.12", "tcp")};
  report.rows[0].measured.p50_us = kUnknown;
  const std::vector<Panel> panels = panels_of(report);
  EXPECT_EQ(panels.at(0).series[0].spots[0].value, 40);
  EXPECT_THAT(panels.at(0).series[0].name, HasSubstr("(average)"));
}

// Returns the colour of each series by name.
std::map<std::string, std::string> colours(const std::vector<Row>& rows) {
  Report report;
  report.rows = rows;
  const std::vector<Panel> panels = panels_of(report);
  std::map<std::string, std::string> result;
  for (const Panel& panel : panels) {
    for (const Series& series : panel.series) result[series.name] = colour_of(series, panels);
  }
  return result;
}

TEST(Plot, ImplementationHasOneColourInAllCharts) {
  const auto one =
      colours({plotted_row("latency", "hetcomm", "shm"), plotted_row("latency", "gloo-1.0", "tcp"),
               plotted_row("bandwidth", "openmpi-5.0.11/no-cma", "shm"),
               plotted_row("bandwidth", "openmpi-5.0.11/tcp", "tcp"),
               plotted_row("bandwidth", "hetcomm", "tcp")});
  ASSERT_EQ(one.size(), 5U);
  EXPECT_EQ(one.at("hetcomm shm"), one.at("hetcomm tcp"));
  EXPECT_EQ(one.at("openmpi-5.0.11 shm, no-cma"), one.at("openmpi-5.0.11 tcp"));
  EXPECT_NE(one.at("openmpi-5.0.11 tcp"), one.at("hetcomm tcp"));
  EXPECT_NE(one.at("openmpi-5.0.11 tcp"), one.at("gloo-1.0 tcp"));
  // The second chart has additional series, in another order.
  const auto other = colours({plotted_row("allreduce", "openmpi-4.1.4", "shm"),
                              plotted_row("allreduce", "ucx-1.19", "shm"),
                              plotted_row("allreduce", "hetcomm", "shm")});
  EXPECT_EQ(other.at("openmpi-4.1.4 shm"), one.at("openmpi-5.0.11 tcp"));
  EXPECT_EQ(other.at("hetcomm shm"), one.at("hetcomm shm"));
  EXPECT_NE(other.at("ucx-1.19 shm"), other.at("openmpi-4.1.4 shm"));
}

TEST(Plot, EachSettingHasItsOwnLine) {
  Row first = plotted_row("staging", "hetcomm", "tcp");
  Row second = first;
  second.staging_chunk = 65536;
  const auto alone = colours({first, second});
  ASSERT_EQ(alone.size(), 2U) << "not one line through both";
  EXPECT_NE(alone.at("hetcomm tcp"), alone.at("hetcomm tcp, chunk 64K"));
}

}  // namespace
}  // namespace bench
