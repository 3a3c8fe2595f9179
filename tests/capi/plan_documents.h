// Documents for tests of libhetcomm_plan, and its calls with texts of their own.
#pragma once

#include <cstddef>
#include <hetcomm_plan/hetcomm_plan.h>
#include <string>

#include <gtest/gtest.h>

namespace hetcomm_test {

inline constexpr const char* kMeasurements = R"({
  "format": "hetcomm link measurements", "version": 1, "hosts": [{"label": "a"}, {"label": "b"}],
  "rounds": [{"transfers": [{"from": 0, "to": 1, "bytes_per_s": 3000000}]},
             {"transfers": [{"from": 1, "to": 0, "bytes_per_s": 2000000}]}]})";

// Two accelerators behind switches of their own, each with a NIC. The farther address comes first,
// also in the affinity, which says the opposite of what distances do.
inline constexpr const char* kMachine = R"({
  "format": "hetcomm topology", "version": 1, "numa_nodes": [{"number": 0}],
  "pci": [
    {"kind": "root complex", "address": "0000:80:00.0", "numa_nodes": [0], "children": [
      {"kind": "bridge", "address": "0000:80:01.0", "children": [
        {"kind": "function", "address": "0000:82:00.0", "class": "0302"},
        {"kind": "function", "address": "0000:83:00.0", "class": "0207"}]}]},
    {"kind": "root complex", "address": "0000:00:00.0", "numa_nodes": [0], "children": [
      {"kind": "bridge", "address": "0000:00:01.0", "children": [
        {"kind": "function", "address": "0000:02:00.0", "class": "0302"},
        {"kind": "function", "address": "0000:03:00.0", "class": "0207"}]}]}],
  "nics": [
    {"interface": "far0", "state": "up", "mbit_per_s": 100, "functions": ["0000:83:00.0"]},
    {"interface": "near0", "state": "up", "mbit_per_s": 100, "functions": ["0000:03:00.0"]}],
  "accelerators": [{"address": "0000:82:00.0"}, {"address": "0000:02:00.0"}],
  "affinity": {
    "accelerators": [
      {"address": "0000:82:00.0",
       "nics": [{"name": "near0", "distance": "NUMA node", "share_mbit_per_s": 100}]},
      {"address": "0000:02:00.0",
       "nics": [{"name": "far0", "distance": "NUMA node", "share_mbit_per_s": 100}]}],
    "numa_nodes": [
      {"number": 0, "nics": [{"name": "far0", "distance": "NUMA node", "share_mbit_per_s": 50}]}]}})";

// Two ranks with rows, and two others with columns.
inline constexpr const char* kQuestion = R"({
  "format": "hetcomm reshard question", "version": 1,
  "layouts": {
    "rows": {"shape": [4, 6], "parts": [{"rank": 0, "box": [[0, 2], [0, 6]]},
                                        {"rank": 1, "box": [[2, 4], [0, 6]]}]},
    "columns": {"shape": [4, 6],
                "mesh": {"axes": [2], "ranks": [2, 3],
                         "placements": [{"kind": "shard", "dimension": 1}]}}},
  "tensors": [{"source": "rows", "destination": "columns", "type": "float32"}],
  "strategy": "direct", "prove": true})";

inline constexpr const char* kLayout = R"({
  "format": "hetcomm layout", "version": 1, "shape": [4, 6],
  "parts": [{"rank": 0, "box": [[0, 2], [0, 6]]},
            {"rank": 1, "box": [[2, 4], [0, 6]], "offset": 5, "strides": [7, 1]}]})";

inline constexpr const char* kScheduleQuestion = R"({
  "format": "hetcomm schedule question", "version": 1,
  "schedule": {"name": "h-1f1b", "ranks": 3, "micro_batches": 5, "epsilon_ppm": 1000},
  "times": {"stages": [{"forward_ns": 10, "backward_ns": 20}],
            "boundaries": [{"after": 1, "busy_ns": 5, "latency_ns": 20}], "overlap_ppm": 7},
  "memory": [{"forward_adds": 4, "input_grad_frees": 1, "weight_grad_frees": 3}],
  "limits": [50], "reductions": true, "level": "waits", "receives_ahead": 2,
  "send_waits": "before_reuse", "send_buffers": 2})";

inline constexpr const char* kPipelinePlan = R"({
 "format": "hetcomm pipeline plan", "version": 1,
 "cluster": {"hash": "c"}, "model": {"hash": "m", "items": 3},
 "training": {"global_batch": 8, "sequence": 4, "precision": "fp32", "optimizer": "sgd"},
 "ranks": [{"host": "a", "device": 0}, {"host": "a", "device": 1}, {"host": "b", "device": 0}],
 "pipelines": [{"micro_batches": 4, "micro_batch_size": 2,
  "stages": [{"items": [0, 2], "ranks": [0, 1], "degrees": {"tensor": 2}, "live_limit": 2},
             {"items": [2, 3], "ranks": [2]}],
  "schedule": {"name": "1f1b"},
  "boundaries": [{"from": 0, "to": 1, "in_flight": 3, "strategy": "direct", "tensors": [
   {"name": "x", "type": "float32", "shape": [2, 4], "cut": {"data": 0, "tensor": 1}}]}]}],
 "shared": [{"item": 0, "holders": [{"stage": 0}, {"stage": 1}]}],
 "gradients": {"weight": "samples"}})";

// A question about all of kPipelinePlan over links between the hosts a and b.
inline std::string forecast_question(const std::string& links) {
  return R"({"format": "hetcomm forecast question", "version": 1,
    "times": {"stages": [{"forward_ns": 1000, "backward_ns": 2000}], "overlap_ppm": 1},
    "items": [{"gradient_bytes": 4096, "weight_bytes": 4096}],
    "links": {"nics": ["", "", ""], "model": )" +
         links + R"(}, "plan": )" + kPipelinePlan + "}";
}

using PlanFunction = hetcomm_status_t (*)(const char*, int32_t, size_t, char*, size_t*);

// Calls |function| twice: for the size and for the text. Returns "" after a failure.
inline std::string answer(PlanFunction function, const std::string& document, int32_t form) {
  size_t size = 0;
  hetcomm_status_t status = function(document.c_str(), form, 0, nullptr, &size);
  EXPECT_EQ(status, HETCOMM_OK) << hetcomm_plan_last_error();
  if (status != HETCOMM_OK) return "";
  std::string text(size, '#');
  status = function(document.c_str(), form, size, text.data(), &size);
  EXPECT_EQ(status, HETCOMM_OK) << hetcomm_plan_last_error();
  EXPECT_EQ(size, text.size());
  EXPECT_EQ(text.back(), '\0');
  text.pop_back();
  return text;
}

}  // namespace hetcomm_test
