// Pipelines whose callbacks put work into a stream and return, here an OpenCL queue of each rank,
// from two vendors: data leaves when the work that makes it has ended, and buffers are used again
// when the work that reads them has.
#include <atomic>
#include <chrono>
#include <cstring>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <hetcomm/pipeline.h>

#include "pipeline/plan/plan_json.h"
#include "tests/conformance/capi/device/opencl.h"
#include "tests/conformance/capi/job.h"
#include "tests/support/pipeline_plans.h"

namespace hetcomm_test {
namespace {

namespace pipeline = hetcomm::pipeline;

constexpr uint64_t kElements = 4 * 8 * 2;  // of the plan's tensor

class PipelineStreams : public OpenClTest {};
INSTANTIATE_TEST_SUITE_P(All, PipelineStreams, ::testing::ValuesIn(stream_cases()), capi_case_name);

// Opens gates in the order in which they were made, each some time later.
class GateKeeper {
 public:
  explicit GateKeeper(const Framework& framework)
      : api_(framework.api()), context_(framework.context()), thread_([this] { run(); }) {}
  GateKeeper(const GateKeeper&) = delete;
  GateKeeper& operator=(const GateKeeper&) = delete;
  ~GateKeeper() {
    ends_ = true;
    thread_.join();
  }
  // Makes the work that is put into |queue| from now on wait.
  void add(cl_command_queue queue) {
    cl_int status = CL_SUCCESS;
    const cl_event gate = api_.CreateUserEvent(context_, &status);
    EXPECT_EQ(status, CL_SUCCESS);
    EXPECT_EQ(api_.EnqueueBarrierWithWaitList(queue, 1, &gate, nullptr), CL_SUCCESS);
    EXPECT_EQ(api_.Flush(queue), CL_SUCCESS);
    const std::lock_guard<std::mutex> lock(mutex_);
    gates_.push_back(gate);
  }

 private:
  void run() {
    while (true) {
      const bool ends = ends_;
      std::list<cl_event> gates;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        gates.swap(gates_);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      for (const cl_event gate : gates) {
        EXPECT_EQ(api_.SetUserEventStatus(gate, CL_COMPLETE), CL_SUCCESS);
        api_.ReleaseEvent(gate);
      }
      if (ends && gates.empty()) return;
    }
  }

  const OpenCl& api_;
  const cl_context context_;
  std::mutex mutex_;
  std::list<cl_event> gates_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

// The stages of one rank: each step waits behind a gate, reads its inputs and writes its outputs.
class StreamModel {
 public:
  StreamModel(const Framework& framework, cl_command_queue queue)
      : api_(framework.api()), queue_(queue), keeper_(framework) {
    chunk_.struct_size = sizeof(chunk_);
    chunk_.forward = chunk_.backward = {.function = &StreamModel::call, .user_data = this};
  }
  const hetcomm_pipeline_chunk_t& chunk() const { return chunk_; }

  // Compares what the steps have read with what it has to be, when the queue is done.
  void check() {
    EXPECT_EQ(api_.Finish(queue_), CL_SUCCESS);
    for (const Read& each : reads_) {
      for (const uint64_t element : each.data) ASSERT_EQ(element, each.wanted);
    }
    EXPECT_FALSE(reads_.empty());
    reads_.clear();
    writes_.clear();
  }

 private:
  struct Read {
    std::vector<uint64_t> data;
    uint64_t wanted;
  };

  static hetcomm_status_t call(void* self, const hetcomm_pipeline_action_t* action) {
    static_cast<StreamModel*>(self)->perform(*action);
    return HETCOMM_OK;
  }

  static uint64_t value(const hetcomm_pipeline_action_t& action, bool is_grad, uint32_t boundary) {
    return (action.step * 1000 + action.micro_batch) * 10 + boundary * 2 + (is_grad ? 1 : 0);
  }

  void perform(const hetcomm_pipeline_action_t& action) {
    keeper_.add(queue_);
    for (size_t i = 0; i < action.input_count; ++i) {
      read(action.inputs[i], value(action, false, action.stage - 1));
    }
    for (size_t i = 0; i < action.output_grad_count; ++i) {
      read(action.output_grads[i], value(action, true, action.stage));
    }
    for (size_t i = 0; i < action.output_count; ++i) {
      write(action.outputs[i], value(action, false, action.stage));
    }
    for (size_t i = 0; i < action.input_grad_count; ++i) {
      write(action.input_grads[i], value(action, true, action.stage - 1));
    }
  }

  static cl_mem memory_of(const hetcomm_pipeline_tensor_t& tensor) {
    EXPECT_EQ(tensor.address, nullptr);
    void* handle = nullptr;
    EXPECT_EQ(hetcomm_memory_address(tensor.buffer.memory, &handle), HETCOMM_OK)
        << hetcomm_last_error();
    return static_cast<cl_mem>(handle);
  }
  void read(const hetcomm_pipeline_tensor_t& tensor, uint64_t wanted) {
    reads_.push_back({.data = std::vector<uint64_t>(kElements), .wanted = wanted});
    Read& read = reads_.back();
    EXPECT_EQ(api_.EnqueueReadBuffer(queue_, memory_of(tensor), CL_FALSE, tensor.buffer.offset,
                                     tensor.buffer.length, read.data.data(), 0, nullptr, nullptr),
              CL_SUCCESS);
  }
  void write(const hetcomm_pipeline_tensor_t& tensor, uint64_t value) {
    const std::vector<uint64_t>& data = writes_.emplace_back(kElements, value);
    EXPECT_EQ(api_.EnqueueWriteBuffer(queue_, memory_of(tensor), CL_FALSE, tensor.buffer.offset,
                                      tensor.buffer.length, data.data(), 0, nullptr, nullptr),
              CL_SUCCESS);
  }

  const OpenCl& api_;
  const cl_command_queue queue_;
  GateKeeper keeper_;
  hetcomm_pipeline_chunk_t chunk_{};
  std::list<Read> reads_;
  std::list<std::vector<uint64_t>> writes_;
};

TEST_P(PipelineStreams, DataIsSentAfterTheWorkThatProducesIt) {
  run(3, [](Member& me) {
    Framework framework(me.rank());
    pipeline::PipelinePlan plan =
        hetcomm::test::plan_of(hetcomm::test::on_ranks({0, 1, 2}), "1f1b", 6);
    const int32_t device = add_device(me, framework);
    for (pipeline::PlanRank& each : plan.ranks) each.device = static_cast<uint32_t>(device);
    const cl_command_queue queue = framework.queue();
    hetcomm_pipeline_options_t options{};
    options.struct_size = sizeof(options);
    ASSERT_EQ(
        hetcomm_stream_wrap(me.context(), device, queue, HETCOMM_STREAM_NOT_HELD, &options.stream),
        HETCOMM_OK)
        << hetcomm_last_error();
    int32_t device_of_stream = -1;
    uint32_t flags = 0;
    EXPECT_EQ(hetcomm_stream_info(options.stream, &device_of_stream, &flags), HETCOMM_OK);
    EXPECT_EQ(device_of_stream, device);
    EXPECT_EQ(flags, static_cast<uint32_t>(HETCOMM_STREAM_NOT_HELD));
    {
      StreamModel model(framework, queue);
      hetcomm_pipeline_t* handle = nullptr;
      ASSERT_EQ(hetcomm_pipeline_create(me.communicator(), pipeline::to_json(plan).c_str(),
                                        &model.chunk(), 1, &options, &handle),
                HETCOMM_OK)
          << hetcomm_pipeline_last_error();
      for (uint64_t step = 0; step < 3; ++step) {
        hetcomm_pipeline_run_options_t run{};
        run.struct_size = sizeof(run);
        run.step = step;
        EXPECT_EQ(hetcomm_pipeline_run(handle, &run), HETCOMM_OK) << hetcomm_pipeline_last_error();
        model.check();
      }
      EXPECT_EQ(hetcomm_pipeline_destroy(handle), HETCOMM_OK);
    }
    // The library may check the queue a moment after the queue is done.
    EXPECT_TRUE(me.until([&] { return hetcomm_stream_destroy(options.stream) != HETCOMM_BUSY; }));
    EXPECT_EQ(framework.api().ReleaseCommandQueue(queue), CL_SUCCESS);
  });
}

// A stream that is held back could never come to the step whose data it waits for.
TEST_P(PipelineStreams, HeldStreamsAndStreamsOfOtherDevicesAreRefused) {
  run(2, [](Member& me) {
    Framework framework(me.rank());
    pipeline::PipelinePlan plan =
        hetcomm::test::plan_of(hetcomm::test::on_ranks({0, 1}), "1f1b", 6);
    const int32_t device = add_device(me, framework);
    const cl_command_queue queue = framework.queue();
    {
      StreamModel model(framework, queue);
      const auto refusal = [&](uint32_t flags, uint32_t device_of_rank) {
        for (pipeline::PlanRank& each : plan.ranks) each.device = device_of_rank;
        hetcomm_pipeline_options_t options{};
        options.struct_size = sizeof(options);
        EXPECT_EQ(hetcomm_stream_wrap(me.context(), device, queue, flags, &options.stream),
                  HETCOMM_OK)
            << hetcomm_last_error();
        hetcomm_pipeline_t* handle = nullptr;
        EXPECT_EQ(hetcomm_pipeline_create(me.communicator(), pipeline::to_json(plan).c_str(),
                                          &model.chunk(), 1, &options, &handle),
                  HETCOMM_INVALID_ARGUMENT);
        const std::string text = hetcomm_pipeline_last_error();
        EXPECT_EQ(hetcomm_stream_destroy(options.stream), HETCOMM_OK);
        return text;
      };
      const auto own = static_cast<uint32_t>(device);
      EXPECT_NE(refusal(0, own).find("HETCOMM_STREAM_NOT_HELD"), std::string::npos);
      EXPECT_NE(refusal(HETCOMM_STREAM_NOT_HELD, 0).find("has device 0"), std::string::npos);
    }
    EXPECT_EQ(framework.api().ReleaseCommandQueue(queue), CL_SUCCESS);
  });
}

}  // namespace
}  // namespace hetcomm_test
