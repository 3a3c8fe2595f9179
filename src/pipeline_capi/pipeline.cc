// Implements the C ABI of libhetcomm_pipeline.
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <hetcomm/pipeline.h>

#include "pipeline/execute/executor.h"
#include "pipeline/execute/trace.h"
#include "pipeline/plan/plan_json.h"
#include "src/wall/output.h"
#include "src/wall/wall.h"

struct hetcomm_pipeline {
  static constexpr uint64_t kTag = 0x6865746370697065;
  uint64_t tag = kTag;
  std::unique_ptr<hetcomm::pipeline::Executor> executor;
  std::mutex mutex;  // guards |runs|; also held during queries, which must not overlap a run
  bool runs = false;
};

namespace hetcomm::capi {
template <>
inline constexpr size_t kFirstSize<hetcomm_pipeline_facts_t> = 72;
}  // namespace hetcomm::capi

namespace {

using hetcomm::Code;
using hetcomm::Status;
namespace capi = hetcomm::capi;
namespace pipeline = hetcomm::pipeline;

Status check(const hetcomm_pipeline_t* handle) {
  if (handle == nullptr) return capi::null_argument("pipeline");
  if (handle->tag == hetcomm_pipeline::kTag) return {};
  return {Code::kInvalidArgument, "pipeline is no pipeline, or was destroyed"};
}

Status busy() { return {Code::kBusy, "a run of the pipeline is under way"}; }

// Marks a pipeline as running while this object exists. status() is BUSY if it was already running.
class Running {
 public:
  explicit Running(hetcomm_pipeline_t& pipeline) : pipeline_(pipeline) {
    const std::lock_guard<std::mutex> lock(pipeline.mutex);
    has_it_ = !pipeline.runs;
    pipeline.runs = true;
  }
  ~Running() {
    if (!has_it_) return;
    const std::lock_guard<std::mutex> lock(pipeline_.mutex);
    pipeline_.runs = false;
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  Status status() const { return has_it_ ? Status() : busy(); }

 private:
  hetcomm_pipeline_t& pipeline_;
  bool has_it_;
};

// Calls query(executor) and returns its status. Returns BUSY if a run is in progress.
template <typename Query>
Status ask(hetcomm_pipeline_t& pipeline, Query&& query) {
  const std::lock_guard<std::mutex> lock(pipeline.mutex);
  return pipeline.runs ? busy() : query(*pipeline.executor);
}

constexpr size_t kMaxGradients = size_t{1} << 22;

// Checks that a caller's list has at most |most| entries, and that the first entry's struct_size,
// which applies to all entries, is the size of an entry.
template <typename Entry>
Status check_list(const std::string& name, const Entry* entries, size_t count, size_t most) {
  if (count == 0) return {};
  if (entries == nullptr) return capi::null_argument(name.c_str());
  if (count > most) {
    return {Code::kInvalidArgument, name + ": there are more than " + std::to_string(most)};
  }
  if (entries[0].struct_size == sizeof(Entry)) return {};
  return {Code::kInvalidArgument, name + "[0].struct_size is " +
                                      std::to_string(entries[0].struct_size) +
                                      ", which is not the size of the struct"};
}

Status read_trainer(const hetcomm_pipeline_chunk_t* chunks, size_t count,
                    const hetcomm_pipeline_options_t& options, pipeline::Trainer& trainer) {
  trainer.stream = options.stream;
  trainer.pair = options.pair;
  trainer.pair_user_data = options.pair_user_data;
  HETCOMM_RETURN_IF_ERROR(check_list("chunks", chunks, count, hetcomm::pipeline::kMaxStages));
  if (count > 0) trainer.chunks.assign(chunks, chunks + count);
  return {};
}

Status check_totals(const double* values, size_t count, const hetcomm_pipeline_totals_t* totals) {
  constexpr size_t kMaxValues = 4096;
  if (count > 0 && values == nullptr) return capi::null_argument("values");
  if (count > kMaxValues) {
    return {Code::kInvalidArgument, "count is above " + std::to_string(kMaxValues)};
  }
  if (totals == nullptr) return {};
  if (totals->struct_size < sizeof(hetcomm_pipeline_totals_t)) {
    return {Code::kInvalidArgument, "totals.struct_size is too small"};
  }
  // The comparison is false for NaN, which is therefore refused.
  if (totals->norm_type >= 0) return {};
  return {Code::kInvalidArgument, "totals.norm_type is below 0, or no number"};
}

// Checks that the pointers |plan| and |out| of hetcomm_pipeline_create() are not null, and copies
// the options |given| to |options|.
Status check_create(const char* plan, const hetcomm_pipeline_options_t* given,
                    hetcomm_pipeline_options_t& options, hetcomm_pipeline_t** out) {
  if (out == nullptr) return capi::null_argument("out_pipeline");
  if (plan == nullptr) return capi::null_argument("plan");
  return capi::read_options(given, &options);
}

}  // namespace

extern "C" {

const char* hetcomm_pipeline_version_string(void) noexcept { return HETCOMM_PIPELINE_VERSION_TEXT; }

const char* hetcomm_pipeline_last_error(void) noexcept { return capi::last_error_text(); }

hetcomm_status_t hetcomm_pipeline_create(hetcomm_communicator_t* communicator, const char* plan,
                                         const hetcomm_pipeline_chunk_t* chunks, size_t chunk_count,
                                         const hetcomm_pipeline_options_t* options,
                                         hetcomm_pipeline_t** out_pipeline) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE(communicator);
    hetcomm_pipeline_options_t known{};
    pipeline::Trainer trainer;
    std::unique_ptr<hetcomm_pipeline> handle;
    // If one of these checks fails, Executor::create() notifies the other ranks.
    const Status checked = pipeline::status_of([&]() -> Status {
      HETCOMM_RETURN_IF_ERROR(check_create(plan, options, known, out_pipeline));
      HETCOMM_RETURN_IF_ERROR(read_trainer(chunks, chunk_count, known, trainer));
      handle = std::make_unique<hetcomm_pipeline>();
      return {};
    });
    auto made = pipeline::Executor::create(communicator, checked.ok() ? plan : "",
                                           std::move(trainer), known.timeout_ns, checked);
    if (!made.ok()) return made.status();
    handle->executor = std::move(made).value();
    *out_pipeline = handle.release();
    return {};
  });
}

hetcomm_status_t hetcomm_pipeline_run(hetcomm_pipeline_t* pipeline,
                                      const hetcomm_pipeline_run_options_t* options) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(pipeline));
    hetcomm_pipeline_run_options_t known{};
    HETCOMM_RETURN_IF_ERROR(capi::read_options(options, &known));
    const Running running(*pipeline);
    HETCOMM_RETURN_IF_ERROR(running.status());
    return pipeline->executor->run(known);
  });
}

hetcomm_status_t hetcomm_pipeline_set_schedule(hetcomm_pipeline_t* pipeline, const char* plan,
                                               uint64_t timeout_ns) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(pipeline));
    const Running running(*pipeline);
    HETCOMM_RETURN_IF_ERROR(running.status());
    const Status known = plan != nullptr ? Status() : capi::null_argument("plan");
    return pipeline->executor->set_schedule(known.ok() ? plan : "", timeout_ns, known);
  });
}

hetcomm_status_t hetcomm_pipeline_set_gradients(hetcomm_pipeline_t* pipeline,
                                                const hetcomm_pipeline_gradient_t* gradients,
                                                size_t count, uint64_t timeout_ns) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(pipeline));
    const Running running(*pipeline);
    HETCOMM_RETURN_IF_ERROR(running.status());
    const Status known = check_list("gradients", gradients, count, kMaxGradients);
    return pipeline->executor->set_gradients(gradients, count, timeout_ns, known);
  });
}

hetcomm_status_t hetcomm_pipeline_total(hetcomm_pipeline_t* pipeline, double* values, size_t count,
                                        hetcomm_pipeline_totals_t* totals,
                                        uint64_t timeout_ns) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(pipeline));
    const Running running(*pipeline);
    HETCOMM_RETURN_IF_ERROR(running.status());
    const Status known = check_totals(values, count, totals);
    return pipeline->executor->total(values, known.ok() ? count : 0, known.ok() ? totals : nullptr,
                                     timeout_ns, known);
  });
}

hetcomm_status_t hetcomm_pipeline_cancel(hetcomm_pipeline_t* pipeline,
                                         const char* reason) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(pipeline));
    return pipeline->executor->cancel(reason);
  });
}

hetcomm_status_t hetcomm_pipeline_facts(hetcomm_pipeline_t* pipeline,
                                        hetcomm_pipeline_facts_t* out_facts) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(pipeline));
    HETCOMM_REQUIRE(out_facts);
    return ask(*pipeline, [&](const pipeline::Executor& executor) {
      return capi::write_output(executor.facts(), out_facts);
    });
  });
}

hetcomm_status_t hetcomm_pipeline_trace(hetcomm_pipeline_t* pipeline, int32_t format,
                                        size_t capacity, char* out_text,
                                        size_t* out_size) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(check(pipeline));
    if (format != HETCOMM_PIPELINE_TRACE_JSON && format != HETCOMM_PIPELINE_TRACE_CHROME) {
      return {Code::kInvalidArgument, "format is none of HETCOMM_PIPELINE_TRACE_*"};
    }
    return ask(*pipeline, [&](const pipeline::Executor& executor) -> Status {
      if (executor.last_run().total_ns == 0) return {Code::kNotFound, "there was no run"};
      const std::string text = format == HETCOMM_PIPELINE_TRACE_JSON
                                   ? to_json(executor.last_program(), executor.last_run())
                                   : to_chrome_trace(executor.last_program(), executor.last_run());
      return capi::write_text(text, capacity, out_text, out_size);
    });
  });
}

hetcomm_status_t hetcomm_pipeline_destroy(hetcomm_pipeline_t* pipeline) noexcept {
  return capi::guard([&]() -> Status {
    if (pipeline == nullptr) return {};
    HETCOMM_RETURN_IF_ERROR(check(pipeline));
    // A forked child must not free objects that belong to its parent.
    HETCOMM_RETURN_IF_ERROR(pipeline->executor->check_process());
    {
      const std::lock_guard<std::mutex> lock(pipeline->mutex);
      if (pipeline->runs) return busy();
      pipeline->tag = 0;
    }
    delete pipeline;
    return {};
  });
}

}  // extern "C"
