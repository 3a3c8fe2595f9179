// Checks the results and output of hetcomm_bench, without running it:
//   * workloads and measurements are unchanged after transfer between processes
//   * percentiles, medians and geometric means are right
//   * only figures from one round and one placement form a ratio
//   * CSV has the numbers from the table; CSV and JSON are well formed and complete
//   * pattern checks find every wrong byte
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/compare.h"
#include "bench/loops/buffers.h"
#include "bench/loops/samples.h"
#include "bench/report.h"
#include "bench/work.h"

namespace bench {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Row row_of(const std::string& test, const std::string& impl, uint64_t bytes, double value) {
  Work work;
  work.workload.test = test;
  work.transport = "shm";
  Measurement measured;
  measured.point = {bytes, 4};
  measured.iterations = measured.messages = 1000;
  // A time in us or a rate in MB/s, depending on the test's measure.
  measured.total_us = smaller_is_better(test)
                          ? value * 1000
                          : static_cast<double>(std::max<uint64_t>(bytes, 1)) * 1000 / value;
  return make_row(work, impl, measured);
}

Trial trial_of(int round, const std::string& placement, std::vector<Row> rows) {
  return {round, placement, 0.05, std::move(rows)};
}

TEST(Workload, EncodingAndDecodingPreservesTheWorkload) {
  Work work;
  work.workload.test = "bandwidth";
  work.workload.iterations = 12345678901;
  work.workload.warmup = 7;
  work.workload.seconds = 0.125;
  work.workload.check = true;
  work.workload.samples = false;
  work.workload.points = {{8, 64}, {67108864, 2}};
  work.transport = "tcp";
  work.first_memory = "sim-handle";
  work.progress = "thread";
  work.ranks = 5;
  Work decoded;
  for (const std::string& word : encode_words(work)) {
    EXPECT_TRUE(decode_work_word(word, &decoded)) << word;
  }
  EXPECT_EQ(encode_words(decoded), encode_words(work));
  EXPECT_EQ(decoded.workload.iterations, 12345678901);
  EXPECT_EQ(decoded.workload.points[1].window, 2);
}

TEST(Workload, UnknownWordsAreRefused) {
  Work work;
  for (const char* word : {"", "=", "tests=latency", "--help", "test", "rank=1"}) {
    EXPECT_FALSE(decode_work_word(word, &work)) << word;
  }
}

TEST(Measurement, EncodingAndDecodingPreservesTheMeasurement) {
  Measurement measured;
  measured.point = {4096, 16};
  measured.iterations = 100;
  measured.messages = 200;
  measured.total_us = 1234.5;
  measured.wrong = 3;
  measured.p999_us = 7.25;
  measured.path = "shm/eager";
  Measurement decoded;
  ASSERT_TRUE(decode(encode(measured), &decoded));
  EXPECT_EQ(encode(decoded), encode(measured));
  EXPECT_EQ(decoded.path, "shm/eager");
  EXPECT_TRUE(std::isnan(decoded.min_us));
}

TEST(Measurement, OtherOutputLinesAreIgnored) {
  Measurement measured;
  for (const char* line :
       {"", "R", "R ", "Rank 0 is here", "R bytes=8", "R iterations=0", "warning: R "}) {
    EXPECT_FALSE(decode(line, &measured)) << line;
  }
}

TEST(Points, SizesGrowByTheFactorAndWindowsFitTheBuffers) {
  const std::vector<Point> points = make_points(8, 1 << 20, 8, 64, 8 << 20);
  ASSERT_EQ(points.size(), 6U);
  EXPECT_EQ(points.back().bytes, 262144U);
  EXPECT_EQ(points.back().window, 32);
  EXPECT_EQ(points.front().window, 64);
  EXPECT_EQ(make_points(100, 100, 2, 64, 10).front().window, 1);
  EXPECT_EQ(make_points(0, 4, 2, 1, 10).size(), 4U) << "0, 1, 2, 4";
}

TEST(Samples, PercentilesTakeTheNearestRank) {
  Samples samples(1000, 1);
  for (int i = 1000; i >= 1; --i) samples.add_us(i);
  Measurement measured;
  samples.summarize(&measured);
  EXPECT_EQ(measured.min_us, 1);
  EXPECT_EQ(measured.p50_us, 500);
  EXPECT_EQ(measured.p99_us, 990);
  EXPECT_EQ(measured.p999_us, 999);
  EXPECT_EQ(measured.max_us, 1000);
  EXPECT_THAT(measured.stdev_us, DoubleNear(288.675, 0.01));
}

TEST(Samples, PercentilesOfOneSampleAreEqual) {
  Samples samples(1, 1);
  samples.add_us(5);
  Measurement measured;
  samples.summarize(&measured);
  EXPECT_EQ(measured.p50_us, 5);
  EXPECT_EQ(measured.p999_us, 5);
  EXPECT_EQ(measured.stdev_us, 0);
}

TEST(Pattern, CorruptedByteIsCounted) {
  for (const uint64_t size : {uint64_t{1}, uint64_t{7}, uint64_t{8}, uint64_t{4097}}) {
    std::vector<uint8_t> bytes(size);
    fill_pattern(bytes.data(), size, 9);
    EXPECT_EQ(count_wrong(bytes.data(), size, 9), 0);
    for (const uint64_t at : {uint64_t{0}, size / 2, size - 1}) {
      bytes[at] = static_cast<uint8_t>(bytes[at] ^ 1);
      EXPECT_EQ(count_wrong(bytes.data(), size, 9), 1) << at << " of " << size;
      bytes[at] = static_cast<uint8_t>(bytes[at] ^ 1);
    }
    // The bytes of another message do not match.
    if (size >= 8) {
      EXPECT_GT(count_wrong(bytes.data(), size, 10), static_cast<int64_t>(size / 2));
    }
  }
}

TEST(Row, AverageAndBandwidthDeriveFromTheTotalTime) {
  Work work;
  work.workload.test = "bibandwidth";
  Measurement measured;
  measured.point = {1000, 1};
  measured.iterations = 10;
  measured.messages = 20;
  measured.total_us = 100;
  measured.path = "tcp/put";
  const Row row = make_row(work, "hetcomm", measured);
  EXPECT_EQ(row.avg_us, 10);
  EXPECT_EQ(row.bandwidth_mbps, 200);
  EXPECT_EQ(row.messages_per_s, 200000);
  EXPECT_EQ(row.transport, "tcp");
  EXPECT_EQ(row.path, "put");
}

TEST(Row, OverlapIsTheShareOfCommunicationTimeHidden) {
  Measurement measured;
  measured.idle_us = 10;
  measured.compute_us = 100;
  measured.overall_us = 105;
  EXPECT_EQ(overlap_percent(measured), 50);
  measured.overall_us = 99;
  EXPECT_EQ(overlap_percent(measured), 100);
  measured.overall_us = 150;
  EXPECT_EQ(overlap_percent(measured), 0);
}

TEST(Row, StagingForecastIsLimitedByTheSlowestStage) {
  Work work;
  work.workload.test = "staging";
  work.first_memory = work.second_memory = "sim-handle";
  work.staging_chunk = 250;
  Measurement measured;
  measured.point = {1000, 2};
  measured.iterations = measured.messages = 10;
  measured.total_us = 1250;
  measured.copy_us = 100;
  measured.wire_us = 40;
  measured.processor_us = 150;
  Row row = make_row(work, "hetcomm", measured);
  // For eight chunks of 25 us each, the first takes 25 + 10 + 25 us, and each of the other seven
  // adds 25 us.
  EXPECT_THAT(staging_forecast_mbps(row), DoubleNear(2000.0 / 235, 1e-9));
  EXPECT_THAT(staging_percent(row), DoubleNear(80, 1e-9));
  EXPECT_THAT(staging_processor_percent(row), DoubleNear(60, 1e-9));
  work.second_memory = "host";
  row = make_row(work, "hetcomm", measured);
  EXPECT_THAT(staging_forecast_mbps(row), DoubleNear(2000.0 / 210, 1e-9));
  Report report;
  report.rows = {row};
  EXPECT_THAT(render_table(report), HasSubstr("of slower(%)"));
  Work decoded;
  for (const std::string& word : encode_words(work)) decode_work_word(word, &decoded);
  EXPECT_EQ(decoded.staging_chunk, 250U);
}

TEST(Ratios, RatiosPairRoundsOfTheSamePlacement) {
  const auto trials = [](const char* impl, std::vector<std::pair<const char*, double>> values) {
    std::vector<Trial> result;
    for (size_t i = 0; i < values.size(); ++i) {
      result.push_back(trial_of(static_cast<int>(i), values[i].first,
                                {row_of("latency", impl, 8, values[i].second)}));
    }
    return result;
  };
  const std::vector<Trial> ours =
      trials("hetcomm", {{"near", 1}, {"far", 4}, {"near", 1}, {"mixed", 9}, {"near", 2}});
  const std::vector<Trial> theirs =
      trials("peer", {{"near", 2}, {"far", 8}, {"far", 100}, {"mixed", 1}, {"near", 2}});
  const std::vector<Ratio> ratios = ratios_of(ours, theirs);
  ASSERT_EQ(ratios.size(), 2U) << "near and far; never mixed";
  EXPECT_EQ(ratios[0].placement, "near");
  EXPECT_EQ(ratios[0].rounds, 2);
  EXPECT_THAT(ratios[0].median, DoubleNear(1.5, 1e-9));
  EXPECT_THAT(ratios[0].smallest, DoubleNear(1, 1e-9));
  EXPECT_THAT(ratios[0].largest, DoubleNear(2, 1e-9));
  EXPECT_EQ(ratios[1].placement, "far");
  EXPECT_EQ(ratios[1].rounds, 1);
}

TEST(Ratios, RatioAboveOneFavoursHetcomm) {
  const auto ratio = [](const char* test) {
    return ratios_of({trial_of(0, "near", {row_of(test, "hetcomm", 8, 10)})},
                     {trial_of(0, "near", {row_of(test, "peer", 8, 5)})})
        .front()
        .median;
  };
  EXPECT_THAT(ratio("latency"), DoubleNear(0.5, 1e-9));
  EXPECT_THAT(ratio("get_latency"), DoubleNear(0.5, 1e-9));
  EXPECT_THAT(ratio("put_bandwidth"), DoubleNear(2, 1e-9));
  EXPECT_THAT(ratio("bandwidth"), DoubleNear(2, 1e-9));
}

TEST(Ratios, RowsWithoutAFigureGiveNoRatio) {
  const Trial empty = trial_of(0, "near", {row_of("bandwidth", "peer", 0, 5)});
  EXPECT_TRUE(ratios_of({empty}, {empty}).empty());
  EXPECT_TRUE(ratios_of({}, {empty}).empty());
  EXPECT_TRUE(ratios_of({empty}, {}).empty());
}

TEST(Medians, MediansUseOnePlacementAndKeepWrongByteCounts) {
  std::vector<Trial> trials;
  for (int round = 0; round < 5; ++round) {
    trials.push_back(
        trial_of(round, round < 3 ? "near" : "far", {row_of("latency", "x", 8, round + 1)}));
  }
  trials[0].rows[0].measured.wrong = 7;
  const std::vector<Row> rows = median_rows(trials, "near");
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_THAT(rows[0].avg_us, DoubleNear(2, 1e-9));
  EXPECT_EQ(rows[0].measured.wrong, 7);
  EXPECT_THAT(median_rows(trials, "elsewhere")[0].avg_us, DoubleNear(3, 1e-9));
}

TEST(Texts, SizesAndNumbersAreAbbreviated) {
  EXPECT_EQ(size_text(8), "8");
  EXPECT_EQ(size_text(1536), "1536");
  EXPECT_EQ(size_text(65536), "64K");
  EXPECT_EQ(size_text(uint64_t{1} << 30), "1G");
  EXPECT_EQ(number_text(kUnknown), "-");
  EXPECT_EQ(number_text(0.0712), "0.071");
  EXPECT_EQ(number_text(12345.6), "12346");
}

Report sample_report() {
  Report report;
  report.version = "1.2.3";
  report.host = "a<b>&\"c\"";
  report.command = "hetcomm_bench latency, bandwidth";
  report.peers = {{"openmpi-5/no-cma", "5", "/opt"}};
  for (const char* impl : {"hetcomm", "openmpi-5/no-cma"}) {
    for (const char* test :
         {"latency", "bandwidth", "msgrate", "overlap", "put_latency", "fetch_add_rate"}) {
      report.rows.push_back(row_of(test, impl, 8, 3));
      report.rows.push_back(row_of(test, impl, 0, 3));
      report.rows.push_back(row_of(test, impl, 65536, 30));
    }
  }
  report.rounds = 15;
  report.placements = {{"near", 12, 0.05}};
  Ratio ratio;
  ratio.peer = "openmpi-5/no-cma";
  ratio.test = "latency";
  ratio.median = ratio.smallest = ratio.largest = 1.25;
  ratio.rounds = 12;
  report.ratios = {ratio};
  return report;
}

TEST(Render, JsonHasTheDocumentedFields) {
  const nlohmann::json document = nlohmann::json::parse(render_json(sample_report()));
  for (const char* field : {"version", "host", "command", "peers"}) {
    EXPECT_TRUE(document["meta"].contains(field)) << field;
  }
  ASSERT_EQ(document["rows"].size(), 36U);
  for (const char* field :
       {"test", "impl", "transport", "memory", "window", "bytes", "iterations", "min_us", "p50_us",
        "avg_us", "p99_us", "p999_us", "bandwidth_MBps", "wrong"}) {
    EXPECT_TRUE(document["rows"][0].contains(field)) << field;
  }
  EXPECT_TRUE(document["rows"][0]["min_us"].is_null()) << "not measured";
  EXPECT_EQ(document["meta"]["comparison"]["ratios"][0]["ratio"], 1.25);
}

TEST(Render, EveryCsvLineHasAsManyFieldsAsTheHeader) {
  const std::string text = render_csv(sample_report());
  const std::vector<std::string_view> lines = split(text, '\n');
  ASSERT_EQ(lines.size(), 37U);
  for (const std::string_view line : lines) {
    EXPECT_EQ(std::count(line.begin(), line.end(), ','),
              std::count(lines[0].begin(), lines[0].end(), ','))
        << line;
  }
}

TEST(Render, TablesNameTheirColumns) {
  const std::string table = render_table(sample_report());
  for (const char* text :
       {"t_typical[usec]", "99.9%[usec]", "BW average[MB/s]", "overlap(%)", "one way",
        "geometric mean 1.25", "above 1: hetcomm is better", "12 near"}) {
    EXPECT_THAT(table, HasSubstr(text));
  }
  EXPECT_THAT(table, Not(HasSubstr("#wrong"))) << "nothing was checked";
  const std::string osu = render_osu(sample_report());
  EXPECT_THAT(osu, HasSubstr("# Size          Latency (us)"));
  EXPECT_THAT(osu, HasSubstr("One Sided Fetch and Add Rate Test"));
}

TEST(Render, CsvAndTableShowTheSameNumbers) {
  Report report;
  Row row = row_of("latency", "hetcomm", 8, 3);
  row.avg_us = 12.3456789;
  row.measured.min_us = 0.0123456;
  row.measured.p99_us = 123.456;
  row.measured.max_us = 98765.4321;
  row.bandwidth_mbps = 7.0004;
  report.rows = {row};
  const std::string text = render_csv(report);
  const std::string table = render_table(report);
  const std::vector<std::string_view> lines = split(text, '\n');
  const std::vector<std::string_view> names = split(lines[0], ',');
  // split() returns no value for an empty field.
  std::vector<std::string> values(1);
  for (const char letter : lines[1]) {
    if (letter == ',') {
      values.emplace_back();
    } else {
      values.back() += letter;
    }
  }
  ASSERT_EQ(values.size(), names.size());
  const std::map<std::string_view, std::string> expected = {
      {"avg_us", "12.35"}, {"min_us", "0.012"}, {"p99_us", "123.5"}, {"max_us", "98765"}};
  for (size_t i = 0; i < names.size(); ++i) {
    const auto found = expected.find(names[i]);
    if (found == expected.end()) continue;
    EXPECT_EQ(values[i], found->second) << names[i];
    EXPECT_THAT(table, HasSubstr(" " + found->second + " ")) << names[i];
  }
  EXPECT_EQ(values[static_cast<size_t>(std::find(names.begin(), names.end(), "bandwidth_MBps") -
                                       names.begin())],
            "7.00");
}

TEST(Render, EmptyReportStillRenders) {
  EXPECT_THAT(render_table(Report{}), HasSubstr("hetcomm_bench"));
}

}  // namespace
}  // namespace bench
