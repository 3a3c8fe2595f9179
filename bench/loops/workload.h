// A workload defines what a benchmark process measures, and the process answers with measurement
// lines. The words of a workload are on the command line, and every measured point is one line of
// standard output. hetcomm's own ranks and the runners of the other libraries use the same format,
// so that one driver can interleave them. This file depends only on the standard library, since a
// runner is compiled on the machine that has the other library.
//
//   words  test=latency iterations=0 warmup=-1 seconds=0.05 check=1 samples=1 points=8:1,64:1
//   line   R bytes=8 window=1 iterations=200000 messages=400000 total_us=13600.5 wrong=0 ...
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

struct Point {
  uint64_t bytes = 0;
  int window = 1;  // messages in flight
};

struct Workload {
  std::string test;        // latency, bandwidth, put_latency, ...
  int64_t iterations = 0;  // 0: as many as fill |seconds|
  int64_t warmup = -1;     // -1: a tenth of |iterations|; if that is 0, the search for it
  double seconds = 0.05;   // time for one pass over one point
  bool check = false;      // compare every byte
  bool samples = true;     // a second pass with a clock around every message, for percentiles
  std::vector<Point> points;
};

// The results of one point. Times are for one message in one direction, in microseconds, except
// total_us. kUnknown means not measured. |iterations| counts the messages from one sender,
// |messages| those from all senders. total_us is the time until all messages were delivered
// (latency: halved, so that it counts one direction).
struct Measurement {
  Point point;
  int64_t iterations = 0;
  int64_t messages = 0;
  double total_us = 0;
  int64_t wrong = -1;  // wrong bytes (collective operations: elements); -1: not checked
  double min_us = kUnknown;
  double max_us = kUnknown;
  double p50_us = kUnknown;
  double p99_us = kUnknown;
  double p999_us = kUnknown;
  double stdev_us = kUnknown;
  double idle_us = kUnknown;         // overlap: transfer with a waiting receiver
  double compute_us = kUnknown;      // overlap: computing alone
  double overall_us = kUnknown;      // overlap: transfer and computing together
  double copy_us = kUnknown;         // staging: copying alone on the slower side
  double wire_us = kUnknown;         // staging: the same message from host to host
  double processor_us = kUnknown;    // staging: processor time of both stages alone, on both ranks
  double chunk_bytes = kUnknown;     // average size of the staged chunks
  double in_place_us = kUnknown;     // collective operations: one operation in place
  double in_place_wrong = kUnknown;  // collective operations: wrong elements of that operation
  std::string path;                  // path of the bytes, if the implementation reports it
};

// --- kinds of tests, by their names --------------------------------------------------------------

// Returns whether the test runs one message or operation at a time and is judged by its duration.
inline bool is_latency(std::string_view test) {
  constexpr std::string_view kEnd = "latency";
  return test.size() >= kEnd.size() && test.substr(test.size() - kEnd.size()) == kEnd;
}
inline bool is_one_sided(std::string_view test) {
  return test.substr(0, 4) == "put_" || test.substr(0, 4) == "get_" ||
         test.substr(0, 10) == "fetch_add_";
}

// --- words of the form key=value --------------------------------------------------------------

inline bool take_word(std::string_view word, std::string_view key, std::string_view* value) {
  if (word.size() <= key.size() || word.substr(0, key.size()) != key || word[key.size()] != '=') {
    return false;
  }
  *value = word.substr(key.size() + 1);
  return true;
}

inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    if (end != 0) parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return parts;
}

inline bool take_number(std::string_view word, std::string_view key, double* number) {
  std::string_view text;
  if (!take_word(word, key, &text)) return false;
  *number = std::strtod(std::string(text).c_str(), nullptr);
  return true;
}

template <class Integer>
bool take_integer(std::string_view word, std::string_view key, Integer* number) {
  std::string_view text;
  if (!take_word(word, key, &text)) return false;
  *number = static_cast<Integer>(std::strtoll(std::string(text).c_str(), nullptr, 10));
  return true;
}

// --- workload -----------------------------------------------------------------------------------

inline std::string encode(const Workload& workload) {
  char numbers[160];
  std::snprintf(
      numbers, sizeof numbers, " iterations=%lld warmup=%lld seconds=%g check=%d samples=%d",
      static_cast<long long>(workload.iterations), static_cast<long long>(workload.warmup),
      workload.seconds, workload.check ? 1 : 0, workload.samples ? 1 : 0);
  std::string text = "test=" + workload.test + numbers + " points=";
  for (const Point& point : workload.points) {
    if (&point != workload.points.data()) text += ',';
    text += std::to_string(point.bytes) + ":" + std::to_string(point.window);
  }
  return text;
}

// Returns false if the word does not belong to a workload.
inline bool decode_workload_word(std::string_view word, Workload* workload) {
  std::string_view text;
  int flag = 0;
  if (take_word(word, "test", &text)) {
    workload->test = text;
  } else if (take_integer(word, "iterations", &workload->iterations) ||
             take_integer(word, "warmup", &workload->warmup) ||
             take_number(word, "seconds", &workload->seconds)) {
    return true;
  } else if (take_integer(word, "check", &flag)) {
    workload->check = flag != 0;
  } else if (take_integer(word, "samples", &flag)) {
    workload->samples = flag != 0;
  } else if (take_word(word, "points", &text)) {
    for (std::string_view entry : split(text, ',')) {
      const std::string point(entry);
      char* end = nullptr;
      const uint64_t bytes = std::strtoull(point.c_str(), &end, 10);
      workload->points.push_back({bytes, *end == ':' ? std::atoi(end + 1) : 1});
    }
  } else {
    return false;
  }
  return true;
}

// --- measurement --------------------------------------------------------------------------------

// The name of a number field in a measurement line, and the member that holds it.
struct MeasurementField {
  const char* name;
  double Measurement::*member;
};
inline constexpr MeasurementField kMeasurementFields[] = {
    {"total_us", &Measurement::total_us},
    {"min_us", &Measurement::min_us},
    {"max_us", &Measurement::max_us},
    {"p50_us", &Measurement::p50_us},
    {"p99_us", &Measurement::p99_us},
    {"p999_us", &Measurement::p999_us},
    {"stdev_us", &Measurement::stdev_us},
    {"idle_us", &Measurement::idle_us},
    {"compute_us", &Measurement::compute_us},
    {"overall_us", &Measurement::overall_us},
    {"copy_us", &Measurement::copy_us},
    {"wire_us", &Measurement::wire_us},
    {"processor_us", &Measurement::processor_us},
    {"chunk_bytes", &Measurement::chunk_bytes},
    {"in_place_us", &Measurement::in_place_us},
    {"in_place_wrong", &Measurement::in_place_wrong},
};

inline std::string encode(const Measurement& measurement) {
  std::string line = "R bytes=" + std::to_string(measurement.point.bytes) +
                     " window=" + std::to_string(measurement.point.window) +
                     " iterations=" + std::to_string(measurement.iterations) +
                     " messages=" + std::to_string(measurement.messages) +
                     " wrong=" + std::to_string(measurement.wrong);
  for (const MeasurementField& field : kMeasurementFields) {
    const double value = measurement.*field.member;
    if (std::isnan(value)) continue;
    char text[64];
    std::snprintf(text, sizeof text, " %s=%.17g", field.name, value);
    line += text;
  }
  if (!measurement.path.empty()) line += " path=" + measurement.path;
  return line;
}

// Parses a measurement line. Returns false if |line| is other output of the process.
inline bool decode(std::string_view line, Measurement* out_measurement) {
  if (line.substr(0, 2) != "R ") return false;
  Measurement measurement;
  for (std::string_view word : split(line.substr(2), ' ')) {
    std::string_view text;
    if (take_integer(word, "bytes", &measurement.point.bytes) ||
        take_integer(word, "window", &measurement.point.window) ||
        take_integer(word, "iterations", &measurement.iterations) ||
        take_integer(word, "messages", &measurement.messages) ||
        take_integer(word, "wrong", &measurement.wrong)) {
      continue;
    }
    if (take_word(word, "path", &text)) measurement.path = text;
    for (const MeasurementField& field : kMeasurementFields) {
      if (take_number(word, field.name, &(measurement.*field.member))) break;
    }
  }
  *out_measurement = measurement;
  return measurement.iterations > 0;
}

}  // namespace bench
