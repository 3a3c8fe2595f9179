#include "pipeline/execute/executor.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "pipeline/execute/agreement.h"
#include "pipeline/plan/plan_json.h"
#include "pipeline/schedule/faults.h"
#include "src/base/text.h"
#include "src/base/units.h"

namespace hetcomm::pipeline {
namespace {

using Kind = ActionKind;

static_assert(HETCOMM_PIPELINE_FORWARD == static_cast<int>(Kind::kForward));
static_assert(HETCOMM_PIPELINE_BACKWARD == static_cast<int>(Kind::kBackward));
static_assert(HETCOMM_PIPELINE_INPUT_GRAD == static_cast<int>(Kind::kInputGrad));
static_assert(HETCOMM_PIPELINE_WEIGHT_GRAD == static_cast<int>(Kind::kWeightGrad));
static_assert(HETCOMM_PIPELINE_RECOMPUTE == static_cast<int>(Kind::kRecompute));
static_assert(HETCOMM_PIPELINE_REDUCE_GRAD == static_cast<int>(Kind::kReduceGradient));
static_assert(HETCOMM_PIPELINE_UNSHARD == static_cast<int>(Kind::kUnshard));
static_assert(HETCOMM_PIPELINE_RESHARD == static_cast<int>(Kind::kReshard));

const hetcomm_pipeline_callback_t* callback_of(const hetcomm_pipeline_chunk_t& chunk, Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return &chunk.forward;
    case Kind::kBackward:
      return &chunk.backward;
    case Kind::kInputGrad:
      return &chunk.input_grad;
    case Kind::kWeightGrad:
      return &chunk.weight_grad;
    case Kind::kRecompute:
      return &chunk.recompute;
    case Kind::kReduceGradient:
      return &chunk.reduce_grad;
    case Kind::kUnshard:
      return &chunk.unshard;
    case Kind::kReshard:
      return &chunk.reshard;
    default:
      return nullptr;
  }
}

// The other ranks end with ABORTED, unless they have found out by themselves that a rank is lost.
std::string text_for_others(uint32_t rank, const Status& failure) {
  return fmt::format("the pipeline ended on rank {} with {}: {}", rank, code_name(failure.code()),
                     printable_beginning(failure.text(), 800));
}

}  // namespace

Result<std::unique_ptr<Executor>> Executor::create(hetcomm_communicator_t* communicator,
                                                   std::string_view plan, Trainer trainer,
                                                   uint64_t timeout_ns, const Status& known) {
  const uint64_t began_ns = clock_ns();
  std::unique_ptr<Executor> made;
  PlanHash hash{};
  const Status prepared = status_of([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(known);
    made.reset(new Executor());
    made->trainer_ = std::move(trainer);
    HETCOMM_RETURN_IF_ERROR(made->prepare(communicator, plan));
    hash = hash_of(made->plan_);
    return {};
  });
  HETCOMM_RETURN_IF_ERROR(agree(communicator, prepared, hash, timeout_ns));
  hetcomm_communicator_t* own = nullptr;
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_communicator_split(
      communicator, 0, static_cast<int32_t>(made->program_.rank), &own)));
  made->communicator_.reset(own);
  const Status opened = status_of([&] { return made->open_channels(communicator); });
  const uint64_t passed_ns = clock_ns() - began_ns;
  const uint64_t left_ns = timeout_ns == 0           ? 0
                           : passed_ns >= timeout_ns ? HETCOMM_TIMEOUT_POLL
                                                     : timeout_ns - passed_ns;
  HETCOMM_RETURN_IF_ERROR(agree(own, opened, hash, left_ns));
  return made;
}

Executor::~Executor() = default;

Status Executor::prepare(hetcomm_communicator_t* communicator, std::string_view plan) {
  int32_t rank = 0;
  int32_t size = 0;
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_communicator_rank(communicator, &rank, &size)));
  Result<PipelinePlan> parsed = parse_plan(plan);
  if (!parsed.ok()) return parsed.status().annotate("plan");
  plan_ = std::move(parsed).value();
  if (plan_.ranks.size() != static_cast<size_t>(size)) {
    return invalid(fmt::format("plan: it is for {} ranks, and the communicator has {}",
                               plan_.ranks.size(), size));
  }
  Result<std::vector<PipelineView>> views = check_plan(plan_);
  if (!views.ok()) return views.status().annotate("plan");
  program_ = program_of(plan_, views.value(), static_cast<uint32_t>(rank));
  HETCOMM_RETURN_IF_ERROR(check_callbacks());
  HETCOMM_RETURN_IF_ERROR(check_stream());
  record_.steps.reserve(program_.steps.size());
  return {};
}

Status Executor::check_callbacks() const {
  if (trainer_.chunks.size() != program_.chunks.size()) {
    return invalid(fmt::format("chunks: there are {} for rank {}, which has {} stages",
                               trainer_.chunks.size(), program_.rank, program_.chunks.size()));
  }
  for (const ProgramStep& step : program_.steps) {
    if (!is_computation(step.action.kind)) continue;
    if (callback_of(trainer_.chunks[step.chunk], step.action.kind)->function != nullptr) continue;
    return invalid(fmt::format("chunks[{}]: rank {} has no callback for the {}", step.chunk,
                               program_.rank, describe(step.action)));
  }
  return {};
}

Status Executor::check_stream() const {
  if (trainer_.stream == nullptr) return {};
  int32_t device = -1;
  uint32_t flags = 0;
  HETCOMM_RETURN_IF_ERROR(
      of_call(hetcomm_stream_info(trainer_.stream, &device, &flags)).annotate("stream"));
  if ((flags & HETCOMM_STREAM_NOT_HELD) == 0) {
    return invalid("stream: it has to be made with HETCOMM_STREAM_NOT_HELD");
  }
  const uint32_t wanted = plan_.ranks[program_.rank].device;
  if (static_cast<uint32_t>(device) == wanted) return {};
  return invalid(fmt::format("stream: it belongs to device {}, and rank {} has device {}", device,
                             program_.rank, wanted));
}

Status Executor::find_wait_limit() {
  const char* text = nullptr;
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_context_variable(context_, "HETCOMM_TIMEOUT", &text)));
  const Result<uint64_t> limit_ns = parse_duration(text);
  if (!limit_ns.ok()) return limit_ns.status();
  wait_limit_ns_ = limit_ns.value();
  return {};
}

Status Executor::open_channels(hetcomm_communicator_t* communicator) {
  ChannelPlace place{.communicator = communicator_.get(),
                     .device = static_cast<int32_t>(plan_.ranks[program_.rank].device),
                     .stream = trainer_.stream};
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_communicator_context(communicator, &place.context)));
  context_ = place.context;
  HETCOMM_RETURN_IF_ERROR(find_wait_limit());
  hetcomm_device_info_t device{};
  device.struct_size = sizeof(device);
  const Status known = of_call(hetcomm_device_info(place.context, place.device, &device));
  if (!known.ok()) return known.annotate(fmt::format("plan: ranks[{}].device", program_.rank));
  place.is_host_accessible = device.host_accessible != 0;
  channels_.reserve(program_.channels.size());
  for (const ProgramChannel& each : program_.channels) {
    Channel& channel = channels_.emplace_back(each, plan_.pipelines[program_.pipeline]);
    HETCOMM_RETURN_IF_ERROR(channel.open(place));
    facts_.buffer_bytes += channel.buffer_bytes();
  }
  facts_.slots = program_.slots;
  facts_.chunks = static_cast<uint32_t>(program_.chunks.size());
  return {};
}

Status Executor::check_process() const {
  Status status = of_call(hetcomm_communicator_status(communicator_.get()));
  return status.code() == Code::kForked ? status : Status();
}

Status Executor::run(uint64_t step, uint64_t timeout_ns) {
  HETCOMM_RETURN_IF_ERROR(check_process());
  if (!ended_.ok()) return ended_;
  run_began_ns_ = clock_ns();
  limits_ = {.step = step};
  if (timeout_ns == 0) {
    limits_.wait_ns = wait_limit_ns_;
  } else if (timeout_ns < UINT64_MAX - run_began_ns_) {
    limits_.deadline_ns = run_began_ns_ + timeout_ns;
  }
  record_.step = step;
  record_.steps.clear();
  const Status status = status_of([&] { return perform(); });
  record_.total_ns = clock_ns() - run_began_ns_;
  if (!status.ok()) return fail(status);
  ++facts_.runs;
  return {};
}

Status Executor::perform() {
  for (Channel& each : channels_) {
    const Status begun = each.begin(limits_);
    if (!begun.ok()) {
      return begun.annotate(fmt::format("posting receives from stage {}", each.program().maker));
    }
  }
  for (at_ = 0; at_ < program_.steps.size();) {
    const size_t count = program_.steps[at_].action.overlaps_next ? 2 : 1;
    HETCOMM_RETURN_IF_ERROR(perform_steps(at_, count));
    at_ += count;
  }
  return end();
}

Status Executor::perform_steps(size_t first, size_t count) {
  StepRecord records[2];
  for (size_t i = 0; i < count; ++i) {
    const Status ready = wait_for(first + i, records[i]);
    if (!ready.ok()) return ready.annotate(describe(program_.steps[first + i].action));
  }
  for (size_t i = 0; i < count; ++i) {
    for (const uint32_t channel : taken_by(program_, program_.steps[first + i])) {
      const Status posted = channels_[channel].take();
      if (!posted.ok()) return posted.annotate(describe(program_.steps[first + i].action));
    }
  }
  HETCOMM_RETURN_IF_ERROR(call(first, count, records));
  for (size_t i = 0; i < count; ++i) {
    const Status finished = finish(program_.steps[first + i]);
    if (!finished.ok()) return finished.annotate(describe(program_.steps[first + i].action));
  }
  return {};
}

Status Executor::check_run() const {
  // Data moves between steps too if there is no progress thread.
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_context_progress(context_)));
  if (is_cancelled_.load(std::memory_order_relaxed)) return {Code::kCancelled, "it was cancelled"};
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_communicator_status(communicator_.get())));
  return limits_.left_ns().status();
}

// Waits until the step |index| may run.
Status Executor::wait_for(size_t index, StepRecord& record) {
  const ProgramStep& step = program_.steps[index];
  HETCOMM_RETURN_IF_ERROR(check_run());
  const std::vector<uint32_t>& taken = taken_by(program_, step);
  const std::vector<uint32_t>& made = made_by(program_, step);
  if (taken.empty() && made.empty()) return {};
  const uint64_t began_ns = clock_ns();
  for (const uint32_t channel : taken) {
    if (channels_[channel].role() != ChannelRole::kReceive) continue;
    const Status here = channels_[channel].await(step.action.micro_batch);
    if (!here.ok()) {
      return here.annotate(
          fmt::format("waiting for data of stage {}", channels_[channel].program().maker));
    }
  }
  const uint64_t has_data_ns = clock_ns();
  for (const uint32_t channel : made) {
    const Status free = channels_[channel].acquire(step.action.micro_batch);
    if (!free.ok()) {
      return free.annotate(
          fmt::format("sending an earlier item to stage {}", channels_[channel].program().taker));
    }
  }
  record.data_wait_ns = has_data_ns - began_ns;
  record.room_wait_ns = clock_ns() - has_data_ns;
  facts_.data_wait_ns += record.data_wait_ns;
  facts_.room_wait_ns += record.room_wait_ns;
  return {};
}

// Calls the trainer for |count| steps from |first| on, and adds |records| of those that were called.
Status Executor::call(size_t first, size_t count, const StepRecord* records) {
  reason_[0] = '\0';
  for (size_t i = 0; i < count; ++i) fill(program_.steps[first + i], calls_[i]);
  if (count == 2 && trainer_.pair != nullptr) {
    const uint64_t start_ns = clock_ns();
    const Status paired = status_of_callback([&] {
      return trainer_.pair(trainer_.pair_user_data, &calls_[0].action, &calls_[1].action);
    });
    for (size_t i = 0; i < count; ++i) keep(records[i], start_ns);
    facts_.callback_ns += clock_ns() - start_ns;
    facts_.callbacks += count;
    return paired.annotate(fmt::format("{} and {}", describe(program_.steps[first].action),
                                       describe(program_.steps[first + 1].action)));
  }
  for (size_t i = 0; i < count; ++i) {
    const uint64_t start_ns = clock_ns();
    const Status called = call_one(program_.steps[first + i], calls_[i]);
    keep(records[i], start_ns);
    facts_.callback_ns += clock_ns() - start_ns;
    if (!called.ok()) return called.annotate(describe(program_.steps[first + i].action));
  }
  return {};
}

// Adds the record of a step that began at |start_ns| and has ended now.
void Executor::keep(StepRecord record, uint64_t start_ns) {
  record.start_ns = start_ns - run_began_ns_;
  record.end_ns = clock_ns() - run_began_ns_;
  record_.steps.push_back(record);
}

Status Executor::call_one(const ProgramStep& step, const Call& call) {
  const hetcomm_pipeline_callback_t* const callback =
      callback_of(trainer_.chunks[step.chunk], step.action.kind);
  if (callback == nullptr || callback->function == nullptr) return {};
  ++facts_.callbacks;
  return status_of_callback([&] { return callback->function(callback->user_data, &call.action); });
}

// Returns how a callback has ended.
template <typename Body>
Status Executor::status_of_callback(Body&& body) const {
  try {
    return outcome(body());
  } catch (const std::exception& exception) {
    return {Code::kInternal, fmt::format("the callback threw an exception: {}", exception.what())};
  } catch (...) {
    return {Code::kInternal, "the callback threw an exception"};
  }
}

// Returns what a callback says that has returned |status|.
Status Executor::outcome(hetcomm_status_t status) const {
  if (status == HETCOMM_OK) return {};
  const std::string_view reason(reason_, strnlen(reason_, sizeof(reason_)));
  const char* const name = hetcomm_status_name(status);
  // PENDING, and numbers that are no status, say nothing.
  const bool is_known = status < 0 && std::string_view(name) != "UNKNOWN";
  return {is_known ? static_cast<Code>(status) : Code::kInternal,
          reason.empty() ? fmt::format("the callback returned {} ({})", name, status)
                         : printable(reason)};
}

void Executor::fill(const ProgramStep& step, Call& call) {
  const ProgramStage& stage = program_.chunks[step.chunk];
  const Action& action = step.action;
  call.inputs.clear();
  call.outputs.clear();
  call.output_grads.clear();
  call.input_grads.clear();
  if (has_micro_batch(action.kind)) {
    gather(stage.inputs, action.micro_batch, call.inputs);
    const bool is_backward = gives_input_grad(action.kind) || gives_weight_grad(action.kind);
    if (action.kind == Kind::kForward) gather(stage.outputs, action.micro_batch, call.outputs);
    if (is_backward) gather(stage.output_grads, action.micro_batch, call.output_grads);
    if (gives_input_grad(action.kind)) {
      gather(stage.input_grads, action.micro_batch, call.input_grads);
    }
  }
  call.action = {.struct_size = sizeof(hetcomm_pipeline_action_t),
                 .kind = static_cast<int32_t>(action.kind),
                 .chunk = step.chunk,
                 .stage = action.stage,
                 .micro_batch = action.micro_batch,
                 .slot = step.slot,
                 .reserved = 0,
                 .step = limits_.step,
                 .inputs = call.inputs.data(),
                 .input_count = call.inputs.size(),
                 .outputs = call.outputs.data(),
                 .output_count = call.outputs.size(),
                 .output_grads = call.output_grads.data(),
                 .output_grad_count = call.output_grads.size(),
                 .input_grads = call.input_grads.data(),
                 .input_grad_count = call.input_grads.size(),
                 .stream = trainer_.stream,
                 .reason = reason_,
                 .reason_capacity = sizeof(reason_)};
}

void Executor::gather(const std::vector<uint32_t>& channels, uint32_t micro_batch,
                      std::vector<hetcomm_pipeline_tensor_t>& tensors) const {
  for (const uint32_t channel : channels) {
    const std::vector<hetcomm_pipeline_tensor_t>& of = channels_[channel].tensors(micro_batch);
    tensors.insert(tensors.end(), of.begin(), of.end());
  }
}

// Sends what |step| has made, and gives back what nobody reads any more.
Status Executor::finish(const ProgramStep& step) {
  const uint32_t micro_batch = step.action.micro_batch;
  for (const uint32_t channel : made_by(program_, step)) {
    HETCOMM_RETURN_IF_ERROR(channels_[channel].send(micro_batch));
  }
  const ProgramStage& stage = program_.chunks[step.chunk];
  if (step.releases_inputs) release(stage.inputs, micro_batch);
  if (step.releases_output_grads) release(stage.output_grads, micro_batch);
  return {};
}

void Executor::release(const std::vector<uint32_t>& channels, uint32_t micro_batch) {
  for (const uint32_t channel : channels) channels_[channel].release(micro_batch);
}

// Waits until all data has left, and all ranks have come to their end.
Status Executor::end() {
  const uint64_t began_ns = clock_ns();
  for (Channel& each : channels_) {
    const Status sent = each.settle();
    if (!sent.ok()) {
      return sent.annotate(fmt::format("sending to stage {}", each.program().taker));
    }
  }
  const Status met = meet_all();
  facts_.end_wait_ns += clock_ns() - began_ns;
  return met.annotate("waiting for all ranks to end the step");
}

Status Executor::meet_all() {
  HETCOMM_RETURN_IF_ERROR(check_run());
  const Result<uint64_t> left_ns = limits_.left_ns();
  if (!left_ns.ok()) return left_ns.status();
  const uint64_t own[2] = {limits_.step, ~limits_.step};
  uint64_t least[2] = {};
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  // Without a time limit of the run that of the library counts.
  options.timeout_ns = left_ns.value() == UINT64_MAX ? HETCOMM_TIMEOUT_DEFAULT : left_ns.value();
  hetcomm_request_t* request = nullptr;
  HETCOMM_RETURN_IF_ERROR(
      of_call(hetcomm_allreduce(communicator_.get(), hetcomm_buffer_host(own, sizeof(own)),
                                hetcomm_buffer_host(least, sizeof(least)), HETCOMM_UINT64,
                                HETCOMM_REDUCE_MIN, &options, &request)));
  HETCOMM_RETURN_IF_ERROR(wait(request));
  if (least[0] == ~least[1]) return {};
  return {Code::kMismatch,
          fmt::format("ranks have run different steps of the training, from {} to {}", least[0],
                      ~least[1])};
}

// Returns what this rank tells its trainer. If another rank has ended the run, its reason comes
// first.
Status Executor::told_here(const Status& failure) const {
  if (failure.code() == Code::kAborted) {
    const Status why = of_call(hetcomm_communicator_status(communicator_.get()));
    if (why.code() == Code::kAborted) {
      return {Code::kAborted, fmt::format("{} (rank {} had come to the {})", why.text(),
                                          program_.rank, describe_place())};
    }
  }
  return failure.annotate(fmt::format("rank {}", program_.rank));
}

std::string Executor::describe_place() const {
  return at_ < program_.steps.size() ? describe(program_.steps[at_].action)
                                     : std::string("end of its steps");
}

// Ends the pipeline on all ranks, and waits until no operation uses its buffers.
Status Executor::fail(const Status& failure) {
  // Without memory for a text the status alone is told.
  const Status told = status_of([&]() -> Status {
    if (!is_cancelled_.load(std::memory_order_relaxed)) return told_here(failure);
    const std::lock_guard<std::mutex> lock(cancel_mutex_);
    return {Code::kCancelled, cancel_reason_};
  });
  const Status announced = status_of([&] {
    return of_call(hetcomm_communicator_abort(communicator_.get(),
                                              text_for_others(program_.rank, failure).c_str()));
  });
  if (!announced.ok()) {
    static_cast<void>(hetcomm_communicator_abort(communicator_.get(), "the pipeline has ended"));
  }
  for (Channel& each : channels_) each.drain();
  ended_ = told;
  return ended_;
}

Status Executor::cancel(const char* reason) {
  HETCOMM_RETURN_IF_ERROR(check_process());
  const std::string text =
      fmt::format("the pipeline was cancelled on rank {}: {}", program_.rank,
                  reason != nullptr ? printable_beginning(reason, 400) : "no reason given");
  {
    const std::lock_guard<std::mutex> lock(cancel_mutex_);
    if (cancel_reason_.empty()) cancel_reason_ = text;
  }
  is_cancelled_.store(true, std::memory_order_relaxed);
  return of_call(hetcomm_communicator_abort(communicator_.get(), text.c_str()));
}

hetcomm_pipeline_facts_t Executor::facts() const { return facts_; }

}  // namespace hetcomm::pipeline
