#include "pipeline/execute/executor.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "pipeline/execute/agreement.h"
#include "pipeline/schedule/faults.h"
#include "src/base/text.h"
#include "src/base/units.h"

namespace hetcomm::pipeline {
namespace {

using Kind = ActionKind;

uint32_t flags_of(RunKind kind) {
  return kind == RunKind::kEvaluate ? HETCOMM_PIPELINE_EVALUATE : 0;
}

// Returns the error text for the other ranks, which end with ABORTED. A rank that has itself
// detected the loss of a rank reports that loss instead.
std::string text_for_others(uint32_t rank, const Status& failure) {
  return fmt::format("the pipeline ended on rank {} with {}: {}", rank, code_name(failure.code()),
                     printable_beginning(failure.text(), 800));
}

}  // namespace

Result<std::unique_ptr<Executor>> Executor::create(hetcomm_communicator_t* communicator,
                                                   std::string_view plan, Trainer trainer,
                                                   uint64_t timeout_ns, const Status& known) {
  std::unique_ptr<Executor> made;
  PlanHash hash{};
  const Status prepared = status_of([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(known);
    made.reset(new Executor());
    made->trainer_ = std::move(trainer);
    HETCOMM_RETURN_IF_ERROR(made->prepare(communicator, plan));
    hash = made->loaded_->hash();
    return {};
  });
  HETCOMM_RETURN_IF_ERROR(
      agree(communicator, JointCall::kCreate, prepared, hash, timeout_ns).status);
  hetcomm_communicator_t* own = nullptr;
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_communicator_split(
      communicator, 0, static_cast<int32_t>(made->loaded_->program().rank), &own)));
  made->communicator_.reset(own);
  RunRecord record;
  const Status opened = status_of([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(made->find_place(communicator));
    record.steps.reserve(made->loaded_->program().steps.size());
    return made->loaded_->open_channels(made->place_);
  });
  // All ranks have arrived by now, so the default timeout applies instead of the rest of
  // |timeout_ns|.
  HETCOMM_RETURN_IF_ERROR(
      agree(own, JointCall::kCreate, opened, hash, HETCOMM_TIMEOUT_DEFAULT).status);
  made->use(std::move(made->loaded_), std::move(record));
  return made;
}

Executor::~Executor() = default;

Status Executor::prepare(hetcomm_communicator_t* communicator, std::string_view plan) {
  int32_t rank = 0;
  int32_t size = 0;
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_communicator_rank(communicator, &rank, &size)));
  auto loaded = LoadedPlan::load(plan, static_cast<uint32_t>(rank), static_cast<uint32_t>(size));
  if (!loaded.ok()) return loaded.status();
  loaded_ = std::move(loaded).value();
  rank_ = static_cast<uint32_t>(rank);
  return loaded_->check_trainer(trainer_);
}

Status Executor::find_wait_limit() {
  const char* text = nullptr;
  HETCOMM_RETURN_IF_ERROR(
      of_call(hetcomm_context_variable(place_.context, "HETCOMM_TIMEOUT", &text)));
  const Result<uint64_t> limit_ns = parse_duration(text);
  if (!limit_ns.ok()) return limit_ns.status();
  wait_limit_ns_ = limit_ns.value();
  return {};
}

Status Executor::find_place(hetcomm_communicator_t* communicator) {
  const uint32_t rank = loaded_->program().rank;
  place_ = {.communicator = communicator_.get(),
            .device = static_cast<int32_t>(loaded_->plan().ranks[rank].device),
            .stream = trainer_.stream};
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_communicator_context(communicator, &place_.context)));
  HETCOMM_RETURN_IF_ERROR(find_wait_limit());
  hetcomm_device_info_t device{};
  device.struct_size = sizeof(device);
  const Status known = of_call(hetcomm_device_info(place_.context, place_.device, &device));
  place_.is_host_accessible = device.host_accessible != 0;
  return known.annotate(fmt::format("plan: ranks[{}].device", rank));
}

// Switches to |loaded|, whose channels are open, and |record|, which has capacity for its steps.
void Executor::use(std::unique_ptr<LoadedPlan> loaded, RunRecord record) {
  loaded_ = std::move(loaded);
  program_ = &loaded_->program();
  record_ = std::move(record);
  facts_.buffer_bytes = loaded_->buffer_bytes() + (sums_ ? sums_->buffer_bytes() : 0);
  facts_.slots = program_->slots;
  facts_.chunks = static_cast<uint32_t>(program_->chunks.size());
}

Status Executor::check_process() const {
  Status status = of_call(hetcomm_communicator_status(communicator_.get()));
  return status.code() == Code::kForked ? status : Status();
}

Status Executor::set_schedule(std::string_view plan, uint64_t timeout_ns, const Status& known) {
  HETCOMM_RETURN_IF_ERROR(check_process());
  if (!ended_.ok()) return ended_;
  std::unique_ptr<LoadedPlan> next;
  PlanHash hash{};
  const Status prepared = status_of([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(known);
    auto loaded =
        LoadedPlan::load(plan, program_->rank, static_cast<uint32_t>(loaded_->plan().ranks.size()));
    if (!loaded.ok()) return loaded.status();
    next = std::move(loaded).value();
    hash = next->hash();
    HETCOMM_RETURN_IF_ERROR(next->check_like(*loaded_));
    HETCOMM_RETURN_IF_ERROR(next->check_trainer(trainer_));
    return sums_ && !sums_->is_empty() ? next->check_sums(trainer_) : Status();
  });
  Agreement agreed =
      agree(communicator_.get(), JointCall::kSetSchedule, prepared, hash, timeout_ns);
  RunRecord record;
  if (agreed.status.ok()) {
    // The plan before the current one has been destroyed on all ranks, so its tags are free.
    place_.generation ^= 1;
    const Status opened = status_of([&] {
      record.steps.reserve(next->program().steps.size());
      return next->open_channels(place_);
    });
    // All ranks have arrived by now, so the default timeout applies instead of the rest of
    // |timeout_ns|.
    agreed =
        agree(communicator_.get(), JointCall::kSetSchedule, opened, hash, HETCOMM_TIMEOUT_DEFAULT);
    // Ranks may have opened different numbers of channels with these tags, so they are not used
    // again. The current plan keeps its own tags.
    if (!agreed.status.ok()) place_.generation = (place_.generation | 1) + 1;
  }
  // Without an answer from the others, this rank cannot tell which plan they use.
  if (!agreed.all_know) return fail_between_runs(agreed.status);
  HETCOMM_RETURN_IF_ERROR(agreed.status);
  use(std::move(next), std::move(record));
  return {};
}

Status Executor::set_gradients(const hetcomm_pipeline_gradient_t* gradients, size_t count,
                               uint64_t timeout_ns, const Status& known) {
  HETCOMM_RETURN_IF_ERROR(check_process());
  if (!ended_.ok()) return ended_;
  std::unique_ptr<GradientSums> next;
  const Status prepared = status_of([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(known);
    next = std::make_unique<GradientSums>();
    if (count > 0) HETCOMM_RETURN_IF_ERROR(loaded_->check_sums(trainer_));
    return next->give(gradients, count, place_.context, loaded_->plan(), loaded_->program());
  });
  Agreement agreed =
      agree(communicator_.get(), JointCall::kSetGradients, prepared, loaded_->hash(), timeout_ns);
  if (agreed.status.ok()) {
    const Status opened = status_of([&] { return next->open(place_, HETCOMM_TIMEOUT_DEFAULT); });
    agreed = agree(communicator_.get(), JointCall::kSetGradients, opened, loaded_->hash(),
                   HETCOMM_TIMEOUT_DEFAULT);
  }
  if (!agreed.all_know) return fail_between_runs(agreed.status);
  HETCOMM_RETURN_IF_ERROR(agreed.status);
  sums_ = std::move(next);
  facts_.buffer_bytes = loaded_->buffer_bytes() + sums_->buffer_bytes();
  return {};
}

Status Executor::total(double* values, size_t count, hetcomm_pipeline_totals_t* totals,
                       uint64_t timeout_ns, const Status& known) {
  HETCOMM_RETURN_IF_ERROR(check_process());
  if (!ended_.ok()) return ended_;
  const double type = totals != nullptr ? totals->norm_type : 0;
  GradientNorm own(type);
  // The type of the norm, this rank's part of the norm, and its values.
  std::vector<uint64_t> words;
  const Status measured = status_of([&]() -> Status {
    HETCOMM_RETURN_IF_ERROR(known);
    if (type > 0 && sums_) HETCOMM_RETURN_IF_ERROR(sums_->measure(own));
    words = {std::bit_cast<uint64_t>(type), std::bit_cast<uint64_t>(own.part()),
             own.has_nonfinite() ? 1u : 0u};
    for (size_t i = 0; i < count; ++i) words.push_back(std::bit_cast<uint64_t>(values[i]));
    return {};
  });
  const Agreement agreed =
      agree(communicator_.get(), JointCall::kTotal, measured, loaded_->hash(), timeout_ns);
  if (!agreed.all_know) return fail_between_runs(agreed.status);
  HETCOMM_RETURN_IF_ERROR(agreed.status);
  Result<std::vector<std::vector<uint64_t>>> told = std::vector<std::vector<uint64_t>>();
  const Status gathered = status_of([&]() -> Status {
    told = pipeline::gather(communicator_.get(), words, HETCOMM_TIMEOUT_DEFAULT);
    return told.status();
  });
  if (!gathered.ok()) return fail_between_runs(gathered);
  const auto& all = told.value();
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() == words.size() && all[rank].front() == words.front()) continue;
    return {
        Code::kMismatch,
        fmt::format("rank {} asks for the sums of {} values and the norm of type {}, and rank {} "
                    "for {} and {}",
                    rank_, count, type, rank, all[rank].size() - 3,
                    std::bit_cast<double>(all[rank].front()))};
  }
  // Adds in rank order, so that all ranks get the same result.
  GradientNorm norm(type);
  std::fill_n(values, count, 0.0);
  for (const std::vector<uint64_t>& each : all) {
    norm.add(std::bit_cast<double>(each[1]), each[2] != 0);
    for (size_t i = 0; i < count; ++i) values[i] += std::bit_cast<double>(each[3 + i]);
  }
  if (totals != nullptr) {
    totals->norm = type > 0 ? norm.norm() : 0;
    totals->has_nonfinite = norm.has_nonfinite() ? 1 : 0;
  }
  return {};
}

Result<Executor::RunWish> Executor::wish_of(const hetcomm_pipeline_run_options_t& options) const {
  constexpr uint32_t kFlags = HETCOMM_PIPELINE_EVALUATE;
  if ((options.flags & ~kFlags) != 0) return invalid("options.flags: there is no such flag");
  RunWish wish;
  wish.timeout_ns = options.timeout_ns;
  wish.interrupt = options.interrupt;
  wish.interrupt_user_data = options.interrupt_user_data;
  wish.terms.step = options.step;
  if ((options.flags & HETCOMM_PIPELINE_EVALUATE) != 0) wish.terms.kind = RunKind::kEvaluate;
  if (options.lengths == nullptr) return wish;
  const PlanPipeline& pipeline = loaded_->pipeline();
  const std::vector<uint64_t>& known = pipeline.lengths;
  if (known.empty()) return invalid("options.lengths: the plan has none");
  if (options.length_count != pipeline.micro_batches) {
    return invalid(fmt::format("options.length_count is {}, and the pipeline has {} micro-batches",
                               options.length_count, pipeline.micro_batches));
  }
  for (size_t i = 0; i < options.length_count; ++i) {
    const auto found = std::lower_bound(known.begin(), known.end(), options.lengths[i]);
    if (found == known.end() || *found != options.lengths[i]) {
      return invalid(fmt::format("options.lengths[{}] is {}, which is none of the plan's", i,
                                 options.lengths[i]));
    }
    wish.terms.lengths.push_back(static_cast<uint8_t>(found - known.begin()));
  }
  return wish;
}

// Calls the trainer's interrupt callback, and returns its answer as a status.
Status Executor::asked(const RunWish& wish) {
  const hetcomm_status_t answer = wish.interrupt(wish.interrupt_user_data);
  if (answer == HETCOMM_OK) return {};
  return {answer < 0 ? static_cast<Code>(answer) : Code::kInternal, "the trainer interrupted it"};
}

Status Executor::run(const hetcomm_pipeline_run_options_t& options) {
  HETCOMM_RETURN_IF_ERROR(check_process());
  if (!ended_.ok()) return ended_;
  Result<RunWish> wish = Code::kOutOfMemory;
  const Status read = status_of([&] {
    wish = wish_of(options);
    return wish.status();
  });
  if (read.ok()) return run(wish.value());
  // The other ranks would wait for a run that this rank cannot begin.
  return read.code() == Code::kInvalidArgument ? read : fail_between_runs(read);
}

Status Executor::run(const RunWish& wish) {
  run_began_ns_ = clock_ns();
  limits_ = {.step = wish.terms.step, .terms = &terms_};
  if (wish.timeout_ns == 0) {
    limits_.patience.wait_ns = wait_limit_ns_;
  } else if (wish.timeout_ns < UINT64_MAX - run_began_ns_) {
    limits_.deadline_ns = run_began_ns_ + wish.timeout_ns;
  }
  if (wish.interrupt != nullptr) {
    limits_.patience.ask = [&wish] { return asked(wish); };
  }
  kind_ = wish.terms.kind;
  program_ = &loaded_->program(kind_);
  at_ = 0;
  is_recorded_ = false;
  const Status status = status_of([&] { return perform(wish); });
  if (is_recorded_) record_.total_ns = clock_ns() - run_began_ns_;
  if (!status.ok()) return fail(status);
  ++facts_.runs;
  return {};
}

Status Executor::perform(const RunWish& wish) {
  const Result<uint64_t> left_ns = limits_.left_ns();
  if (!left_ns.ok()) return left_ns.status();
  // The timeout of the exchange is the time left in the run, since each wait for its result has a
  // separate limit.
  HETCOMM_RETURN_IF_ERROR(terms_.tell(communicator_.get(), loaded_->plan(), program_->pipeline,
                                      wish.terms, left_ns.value()));
  // The receives to post depend on the lengths.
  if (!loaded_->pipeline().lengths.empty()) {
    HETCOMM_RETURN_IF_ERROR(
        terms_.settle(limits_.patience).annotate("waiting for the lengths of the micro-batches"));
  }
  if (sums_) sums_->begin();
  for (Channel& each : loaded_->channels()) {
    const Status begun = each.begin(wish.terms.kind, limits_, terms_.lengths());
    if (!begun.ok()) {
      return annotated(begun,
                       [&] { return fmt::format("posting receives from stage {}", each.maker()); });
    }
  }
  while (at_ < program_->steps.size()) {
    const size_t count = program_->steps[at_].action.overlaps_next ? 2 : 1;
    HETCOMM_RETURN_IF_ERROR(perform_steps(at_, count));
    at_ += count;
  }
  begin_record();
  const uint64_t began_ns = clock_ns();
  const Status ended = wait_for_end();
  facts_.end_wait_ns += clock_ns() - began_ns;
  return ended;
}

// Called with the first step, or at the end of a run without steps. A run that fails earlier
// therefore keeps the record of the previous run.
void Executor::begin_record() {
  if (std::exchange(is_recorded_, true)) return;
  record_.step = limits_.step;
  record_.kind = kind_;
  record_.steps.clear();
}

Status Executor::perform_steps(size_t first, size_t count) {
  StepRecord records[2];
  for (size_t i = 0; i < count; ++i) {
    const Status ready = wait_for(first + i, records[i]);
    if (!ready.ok()) return at_step(ready, first + i);
  }
  for (size_t i = 0; i < count; ++i) {
    for (const uint32_t channel : taken_by(*program_, program_->steps[first + i])) {
      const Status posted = loaded_->channels()[channel].take();
      if (!posted.ok()) return at_step(posted, first + i);
    }
  }
  HETCOMM_RETURN_IF_ERROR(call(first, count, records));
  // Sends the output of both steps of a pair before their gradient sums are announced.
  for (size_t i = 0; i < count; ++i) {
    const ProgramStep& step = program_->steps[first + i];
    for (const uint32_t channel : made_by(*program_, step)) {
      const Status sent = loaded_->channels()[channel].send(step.action.micro_batch);
      if (!sent.ok()) return at_step(sent, first + i);
    }
  }
  for (size_t i = 0; i < count; ++i) {
    const Status finished = finish(program_->steps[first + i]);
    if (!finished.ok()) return at_step(finished, first + i);
  }
  return {};
}

// Returns |failure| with a description of step |index| in front of its text.
Status Executor::at_step(const Status& failure, size_t index) const {
  return annotated(failure, [&] { return describe(program_->steps[index].action); });
}

Status Executor::check_run() {
  // Without a progress thread, data moves only during calls. This call moves it between steps.
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_context_progress(place_.context)));
  if (is_cancelled_.load(std::memory_order_relaxed)) return {Code::kCancelled, "it was cancelled"};
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_communicator_status(communicator_.get())));
  HETCOMM_RETURN_IF_ERROR(terms_.look());
  return limits_.left_ns().status();
}

// Calls the trainer's interrupt callback, if there is one, and checks the run.
Status Executor::check_waiting() {
  if (limits_.patience.ask) HETCOMM_RETURN_IF_ERROR(limits_.patience.ask());
  return check_run();
}

// Waits until step |index| can run.
Status Executor::wait_for(size_t index, StepRecord& record) {
  const ProgramStep& step = program_->steps[index];
  HETCOMM_RETURN_IF_ERROR(check_run());
  const std::vector<uint32_t>& taken = taken_by(*program_, step);
  const std::vector<uint32_t>& made = made_by(*program_, step);
  if (taken.empty() && made.empty()) return {};
  const uint64_t began_ns = clock_ns();
  uint64_t has_data_ns = began_ns;
  Status ready = wait_for_data(taken, step.action.micro_batch, has_data_ns);
  if (ready.ok()) {
    ready = wait_for_room(made, step.action.micro_batch);
    record.room_wait_ns = clock_ns() - has_data_ns;
  }
  record.data_wait_ns = has_data_ns - began_ns;
  facts_.data_wait_ns += record.data_wait_ns;
  facts_.room_wait_ns += record.room_wait_ns;
  return ready;
}

// Waits until the data of |micro_batch| has arrived on the channels |taken|. If it had to wait,
// sets |has_data_ns| to the time at which the last data arrived.
Status Executor::wait_for_data(const std::vector<uint32_t>& taken, uint32_t micro_batch,
                               uint64_t& has_data_ns) {
  for (const uint32_t channel : taken) {
    Channel& own = loaded_->channels()[channel];
    if (own.role() != ChannelRole::kReceive) continue;
    const Result<bool> is_here = own.look(micro_batch);
    Status here = is_here.status();
    if (here.ok() && !is_here.value()) {
      here = own.await(micro_batch);
      has_data_ns = clock_ns();
    }
    if (!here.ok()) {
      return annotated(here,
                       [&] { return fmt::format("waiting for data of stage {}", own.maker()); });
    }
  }
  return {};
}

Status Executor::wait_for_room(const std::vector<uint32_t>& made, uint32_t micro_batch) {
  for (const uint32_t channel : made) {
    Channel& own = loaded_->channels()[channel];
    const Status free = own.acquire(micro_batch);
    if (!free.ok()) {
      return annotated(
          free, [&] { return fmt::format("sending an earlier item to stage {}", own.taker()); });
    }
  }
  return {};
}

// Calls the trainer for |count| steps beginning with |first|. Stores the records of the steps for
// which it was called.
Status Executor::call(size_t first, size_t count, const StepRecord* records) {
  reason_[0] = '\0';
  begin_record();
  for (size_t i = 0; i < count; ++i) fill(program_->steps[first + i], calls_[i]);
  if (count == 2 && trainer_.pair != nullptr) {
    const uint64_t start_ns = clock_ns();
    const Status paired = status_of_callback([&] {
      return trainer_.pair(trainer_.pair_user_data, &calls_[0].action, &calls_[1].action);
    });
    for (size_t i = 0; i < count; ++i) keep(records[i], start_ns);
    facts_.callback_ns += clock_ns() - start_ns;
    facts_.callbacks += count;
    return annotated(paired, [&] {
      return fmt::format("{} and {}", describe(program_->steps[first].action),
                         describe(program_->steps[first + 1].action));
    });
  }
  for (size_t i = 0; i < count; ++i) {
    const uint64_t start_ns = clock_ns();
    const Status called = call_one(program_->steps[first + i], calls_[i]);
    keep(records[i], start_ns);
    facts_.callback_ns += clock_ns() - start_ns;
    if (!called.ok()) return at_step(called, first + i);
  }
  return {};
}

// Stores the record of a step that began at |start_ns| and ends now.
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

// Runs a callback, and returns its result as a status.
template <typename Body>
Status Executor::status_of_callback(Body&& body) const {
  hetcomm_status_t status = HETCOMM_OK;
  try {
    status = body();
  } catch (const std::exception& exception) {
    return status_or_code(Code::kInternal, [&] {
      return fmt::format("the callback threw an exception: {}", exception.what());
    });
  } catch (...) {
    return failure_of(HETCOMM_INTERNAL, "the callback threw an exception");
  }
  return outcome(status);
}

// Returns the Status for |status|, which a callback has returned, with the reason that it has
// written.
Status Executor::outcome(hetcomm_status_t status) const {
  if (status == HETCOMM_OK) return {};
  const std::string_view reason(reason_, strnlen(reason_, sizeof(reason_)));
  const char* const name = hetcomm_status_name(status);
  // PENDING, and numbers that are not status codes, carry no information.
  const bool is_known = status < 0 && std::string_view(name) != "UNKNOWN";
  return status_or_code(is_known ? static_cast<Code>(status) : Code::kInternal, [&] {
    return reason.empty() ? fmt::format("the callback returned {} ({})", name, status)
                          : printable(reason);
  });
}

void Executor::fill(const ProgramStep& step, Call& call) {
  const ProgramStage& stage = program_->chunks[step.chunk];
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
                 .flags = flags_of(kind_),
                 .step = limits_.step,
                 .length = length_of(action),
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

// Returns the length of the micro-batch of |action|, or 0 if there is none.
uint64_t Executor::length_of(const Action& action) const {
  if (!has_micro_batch(action.kind) || terms_.lengths().empty()) return 0;
  return loaded_->pipeline().lengths[terms_.lengths()[action.micro_batch]];
}

void Executor::gather(const std::vector<uint32_t>& channels, uint32_t micro_batch,
                      std::vector<hetcomm_pipeline_tensor_t>& tensors) const {
  for (const uint32_t channel : channels) {
    const std::vector<hetcomm_pipeline_tensor_t>& of =
        loaded_->channels()[channel].tensors(micro_batch);
    tensors.insert(tensors.end(), of.begin(), of.end());
  }
}

// Releases the items that no later step reads. If |step| was the last one to change the gradients
// of its stage, starts their sums.
Status Executor::finish(const ProgramStep& step) {
  const uint32_t micro_batch = step.action.micro_batch;
  const ProgramStage& stage = program_->chunks[step.chunk];
  if (step.releases_inputs) release(stage.inputs, micro_batch);
  if (step.releases_output_grads) release(stage.output_grads, micro_batch);
  if (!step.ends_gradients || !sums_ || !sums_->has_gradients()) return {};
  if (step.action.kind != Kind::kReduceGradient) HETCOMM_RETURN_IF_ERROR(announce_sums(step));
  return sums_->finish_chunk(step.chunk, limits_);
}

// Calls reduce_grad if the schedule has no step for it. |step| was the last one to change the
// gradients of its stage, and its output has been sent.
Status Executor::announce_sums(const ProgramStep& step) {
  ProgramStep reduction;
  reduction.chunk = step.chunk;
  reduction.action = {.stage = step.action.stage, .kind = Kind::kReduceGradient};
  fill(reduction, calls_[0]);
  const uint64_t start_ns = clock_ns();
  const Status called = call_one(reduction, calls_[0]);
  facts_.callback_ns += clock_ns() - start_ns;
  return annotated(called, [&] { return describe(reduction.action); });
}

void Executor::release(const std::vector<uint32_t>& channels, uint32_t micro_batch) {
  for (const uint32_t channel : channels) loaded_->channels()[channel].release(micro_batch);
}

// Waits until all data has been sent, all gradient sums are complete, and all ranks have reached
// the end of the run.
Status Executor::wait_for_end() {
  for (Channel& each : loaded_->channels()) {
    const Status sent = each.settle();
    if (!sent.ok()) {
      return annotated(sent, [&] { return fmt::format("sending to stage {}", each.taker()); });
    }
  }
  if (sums_ && kind_ == RunKind::kTrain && loaded_->trains()) {
    HETCOMM_RETURN_IF_ERROR(sums_->settle(limits_, [&] { return check_waiting(); }));
  }
  return meet_all().annotate("waiting for all ranks to end the step");
}

Status Executor::meet_all() {
  HETCOMM_RETURN_IF_ERROR(check_run());
  HETCOMM_RETURN_IF_ERROR(terms_.settle(limits_.patience));
  const Result<uint64_t> left_ns = limits_.left_ns();
  if (!left_ns.ok()) return left_ns.status();
  // A run without its own time limit uses the library's timeout for each wait.
  const bool has_own_limit = limits_.patience.wait_ns == UINT64_MAX;
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = has_own_limit ? left_ns.value() : HETCOMM_TIMEOUT_DEFAULT;
  HETCOMM_RETURN_IF_ERROR(of_call(hetcomm_barrier(communicator_.get(), &options, &meeting_)));
  return wait_patiently({.ask = limits_.patience.ask}, meeting_);
}

// Returns the status to report to this rank's trainer. If another rank has ended the run, the text
// begins with that rank's reason.
Status Executor::told_here(const Status& failure) const {
  if (failure.code() == Code::kAborted) {
    const Status why = of_call(hetcomm_communicator_status(communicator_.get()));
    if (why.code() == Code::kAborted) {
      return {Code::kAborted, fmt::format("{} (rank {} had come to the {})", why.text(),
                                          program_->rank, describe_place())};
    }
  }
  return annotated(failure, [&] { return fmt::format("rank {}", program_->rank); });
}

std::string Executor::describe_place() const {
  return at_ < program_->steps.size() ? describe(program_->steps[at_].action)
                                      : std::string("end of its steps");
}

// Aborts the communicator, and those that were split from it, on all ranks. If memory is lacking,
// retries until the time limit of the run, or without such a limit, for |wait_limit_ns_|.
void Executor::announce(const Status& failure) {
  Status told = status_of([&] {
    return of_call(hetcomm_communicator_abort(communicator_.get(),
                                              text_for_others(program_->rank, failure).c_str()));
  });
  const uint64_t began_ns = clock_ns();
  const auto may_wait = [&] {
    const bool has_limit = limits_.deadline_ns != UINT64_MAX;
    return has_limit ? clock_ns() < limits_.deadline_ns : clock_ns() - began_ns < wait_limit_ns_;
  };
  while (told.code() == Code::kOutOfMemory && may_wait()) {
    wait_for_memory();
    static_cast<void>(hetcomm_context_progress(place_.context));
    told = of_call(hetcomm_communicator_abort(communicator_.get(), "the pipeline has ended"));
  }
}

// Ends the pipeline on all ranks, and waits until no operation uses its buffers.
Status Executor::fail(const Status& failure) {
  Status told = failure;
  // If there is no memory for a text, only the status code is reported.
  try {
    if (is_cancelled_.load(std::memory_order_relaxed)) {
      told = Code::kCancelled;
      const std::lock_guard<std::mutex> lock(cancel_mutex_);
      told = {Code::kCancelled, cancel_reason_};
    } else {
      told = told_here(failure);
    }
  } catch (const std::bad_alloc&) {
  }
  const bool says_none_began = told.code() == Code::kInvalidArgument || told.code() == Code::kBusy;
  announce(failure);
  for (Channel& each : loaded_->channels()) each.drain();
  terms_.drain();
  drain(meeting_);
  if (sums_) sums_->drain();
  // kInvalidArgument and kBusy would mean to the caller that no run has begun.
  ended_ = !says_none_began ? told : status_or_code(Code::kInternal, [&] {
    return fmt::format("{} ({})", told.text(), code_name(told.code()));
  });
  return ended_;
}

// Like fail(), but for a call between two runs: the limits of the last run do not apply.
Status Executor::fail_between_runs(const Status& failure) {
  limits_ = {};
  return fail(failure);
}

Status Executor::cancel(const char* reason) {
  HETCOMM_RETURN_IF_ERROR(check_process());
  const std::string text =
      fmt::format("the pipeline was cancelled on rank {}: {}", rank_,
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
