// Implements the C ABI of libhetcomm_plan, which converts JSON documents to texts and pictures.
#include <algorithm>
#include <cstring>
#include <hetcomm_plan/hetcomm_plan.h>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "pipeline/joint/forecast_question.h"
#include "pipeline/joint/joint_outlook.h"
#include "pipeline/outlook/outlook.h"
#include "pipeline/outlook/question.h"
#include "pipeline/outlook/run_view.h"
#include "pipeline/plan/check_plan.h"
#include "pipeline/plan/plan_json.h"
#include "pipeline/plan/plan_outline.h"
#include "pipeline/schedule/text.h"
#include "reshard/draft.h"
#include "reshard/draft_json.h"
#include "reshard/faults.h"
#include "reshard/layout_json.h"
#include "reshard/move_plan_draw.h"
#include "reshard/move_plan_json.h"
#include "src/wall/wall.h"
#include "topology/links/link_inference.h"
#include "topology/links/link_model_draw.h"
#include "topology/links/link_model_json.h"
#include "topology/machine/affinity_json.h"
#include "topology/machine/draw.h"
#include "topology/machine/machine_json.h"

namespace {

using hetcomm::Code;
using hetcomm::Result;
using hetcomm::Status;
namespace capi = hetcomm::capi;
namespace pipeline = hetcomm::pipeline;
namespace reshard = hetcomm::reshard;
namespace topology = hetcomm::topology;

constexpr size_t kMaxMachineBytes = size_t{16} << 20;
constexpr size_t kMaxPlanBytes = size_t{1} << 30;

// Returns a view of the caller's |text|. Fails if |text| is null or longer than |most| bytes.
Result<std::string_view> document(const char* text, const char* name, size_t most) {
  if (text == nullptr) return capi::null_argument(name);
  const size_t size = strnlen(text, most + 1);
  if (size <= most) return std::string_view(text, size);
  return Status(Code::kInvalidArgument, fmt::format("{} is longer than {} MiB", name, most >> 20));
}

Status check_form(int32_t form) {
  if (form >= HETCOMM_PLAN_TEXT && form <= HETCOMM_PLAN_SVG) return {};
  return {Code::kInvalidArgument, "form is none of HETCOMM_PLAN_*"};
}

// Checks the output format of a schedule. Schedules have more formats than other documents.
Status check_schedule_form(int32_t form) {
  if (form == HETCOMM_PLAN_CSV || form == HETCOMM_PLAN_TRACE) return {};
  return check_form(form);
}

std::string written(const topology::LinkModel& model, int32_t form) {
  if (form == HETCOMM_PLAN_TEXT) return topology::draw_text(model);
  return form == HETCOMM_PLAN_JSON ? topology::to_json(model) : topology::draw_svg(model);
}

Result<std::string> draw_links(const char* model, int32_t form) {
  HETCOMM_RETURN_IF_ERROR(check_form(form));
  Result<std::string_view> text = document(model, "model", topology::kMaxLinkModelBytes);
  if (!text.ok()) return text.status();
  Result<topology::LinkModel> parsed = topology::parse_link_model(text.value());
  if (!parsed.ok()) return parsed.status().annotate("model");
  return written(parsed.value(), form);
}

Result<std::string> infer_links(const char* measurements, int32_t form) {
  HETCOMM_RETURN_IF_ERROR(check_form(form));
  Result<std::string_view> text =
      document(measurements, "measurements", topology::kMaxLinkModelBytes);
  if (!text.ok()) return text.status();
  Result<topology::LinkMeasurements> measured = topology::parse_link_measurements(text.value());
  if (!measured.ok()) return measured.status().annotate("measurements");
  Result<topology::LinkModel> model = topology::infer(measured.value());
  if (!model.ok()) return model.status().annotate("measurements");
  return written(model.value(), form);
}

Result<std::string> draw_machine(const char* given, int32_t form) {
  HETCOMM_RETURN_IF_ERROR(check_form(form));
  Result<std::string_view> text = document(given, "machine", kMaxMachineBytes);
  if (!text.ok()) return text.status();
  Result<topology::Machine> machine = topology::parse_machine(text.value());
  if (!machine.ok()) return machine.status().annotate("machine");
  Result<topology::Affinity> affinity = topology::parse_affinity(text.value(), machine.value());
  if (!affinity.ok()) return affinity.status().annotate("machine");
  switch (form) {
    case HETCOMM_PLAN_TEXT:
      return topology::draw_text(machine.value(), affinity.value());
    case HETCOMM_PLAN_JSON:
      return topology::to_json(machine.value(), affinity.value());
    default:
      return topology::draw_svg(machine.value(), affinity.value());
  }
}

Result<std::string> draft_layout(const char* given, int32_t form) {
  HETCOMM_RETURN_IF_ERROR(check_form(form));
  if (form == HETCOMM_PLAN_SVG) return reshard::unsupported("a layout has no picture");
  Result<std::string_view> text = document(given, "layout", kMaxPlanBytes);
  if (!text.ok()) return text.status();
  Result<reshard::Layout> layout = reshard::parse_layout(text.value());
  if (!layout.ok()) return layout.status().annotate("layout");
  return form == HETCOMM_PLAN_TEXT ? reshard::to_table(layout.value())
                                   : reshard::to_json(layout.value());
}

Result<std::string> draft_reshard(const char* given, int32_t form) {
  HETCOMM_RETURN_IF_ERROR(check_form(form));
  Result<std::string_view> text = document(given, "question", kMaxPlanBytes);
  if (!text.ok()) return text.status();
  Result<reshard::DraftQuestion> question = reshard::parse_draft_question(text.value());
  if (!question.ok()) return question.status().annotate("question");
  constexpr reshard::PlanFormat kFormats[] = {
      reshard::PlanFormat::kText, reshard::PlanFormat::kJson, reshard::PlanFormat::kSvg};
  return reshard::draft(question->tensors, question->options,
                        question->links ? &*question->links : nullptr,
                        kFormats[static_cast<size_t>(form)]);
}

Result<std::string> draw_plan(const char* given, int32_t form) {
  HETCOMM_RETURN_IF_ERROR(check_form(form));
  if (form == HETCOMM_PLAN_JSON) return reshard::unsupported("the plan is JSON already");
  Result<std::string_view> text = document(given, "plan", kMaxPlanBytes);
  if (!text.ok()) return text.status();
  Result<std::vector<reshard::PlanOutline>> plans = reshard::parse_move_plans(text.value());
  if (!plans.ok()) return plans.status().annotate("plan");
  std::vector<reshard::SizedPlan> sized;
  for (const reshard::PlanOutline& each : plans.value()) {
    sized.push_back({&each.plan, each.element_bytes});
  }
  if (form == HETCOMM_PLAN_SVG) return reshard::to_svg(sized);
  return reshard::to_text(sized);
}

// Returns |view| in the format |form|. |view| is |outlook| itself, or a RunView that contains
// |outlook|.
template <typename View>
Result<std::string> in_form(const View& view, const pipeline::Outlook& outlook, int32_t form) {
  switch (form) {
    case HETCOMM_PLAN_TEXT:
      return pipeline::to_text(view);
    case HETCOMM_PLAN_JSON:
      return pipeline::to_json(view);
    case HETCOMM_PLAN_SVG:
      return pipeline::to_svg(view);
    case HETCOMM_PLAN_CSV:
      return pipeline::write_csv(outlook.schedule);
    default:
      return pipeline::to_chrome_trace(outlook);
  }
}

Result<std::string> draft_schedule(const char* given, int32_t form) {
  HETCOMM_RETURN_IF_ERROR(check_schedule_form(form));
  Result<std::string_view> text = document(given, "question", kMaxPlanBytes);
  if (!text.ok()) return text.status();
  Result<pipeline::ScheduleQuestion> question = pipeline::parse_question(text.value());
  if (!question.ok()) return question.status().annotate("question");
  if (!question->traces.empty()) {
    Result<pipeline::RunView> view = pipeline::look_at_run(std::move(question).value());
    return view.ok() ? in_form(view.value(), view->outlook, form) : view.status();
  }
  Result<pipeline::Outlook> outlook = pipeline::look_at(std::move(question).value());
  return outlook.ok() ? in_form(outlook.value(), outlook.value(), form) : outlook.status();
}

Result<std::string> draft_forecast(const char* given, int32_t form) {
  if (form == HETCOMM_PLAN_CSV) {
    return Status(Code::kUnsupported, "the forecast of a plan has no CSV");
  }
  HETCOMM_RETURN_IF_ERROR(check_schedule_form(form));
  Result<std::string_view> text = document(given, "question", kMaxPlanBytes);
  if (!text.ok()) return text.status();
  Result<pipeline::ForecastQuestion> question = pipeline::parse_forecast_question(text.value());
  if (!question.ok()) return question.status().annotate("question");
  Result<pipeline::Outlook> outlook = pipeline::look_at_plan(question.value());
  if (!outlook.ok()) return outlook.status();
  return in_form(outlook.value(), outlook.value(), form);
}

// Draws the schedule of |plan|. Fails if |plan| has more than one pipeline.
Result<std::string> draw_schedule(const pipeline::PipelinePlan& plan, pipeline::PipelineView view) {
  if (plan.pipelines.size() > 1) {
    return Status(Code::kUnsupported, "plan: a picture shows one pipeline, and there are several");
  }
  pipeline::ScheduleQuestion question;
  question.check.in_flight = std::move(view.stage_in_flight);
  question.schedule = std::move(view.schedule);
  question.exposed = std::move(view.exposed);
  Result<pipeline::Outlook> outlook = pipeline::look_at(std::move(question));
  if (!outlook.ok()) return outlook.status();
  return pipeline::to_svg(outlook.value());
}

Result<std::string> draft_pipeline(const char* given, int32_t form) {
  HETCOMM_RETURN_IF_ERROR(check_form(form));
  Result<std::string_view> text = document(given, "plan", pipeline::kMaxPlanBytes);
  if (!text.ok()) return text.status();
  Result<pipeline::PipelinePlan> plan = pipeline::parse_plan(text.value());
  if (!plan.ok()) return plan.status().annotate("plan");
  Result<std::vector<pipeline::PipelineView>> views = pipeline::check_plan(plan.value());
  if (!views.ok()) return views.status().annotate("plan");
  if (form == HETCOMM_PLAN_SVG) {
    return draw_schedule(plan.value(), std::move(views.value().front()));
  }
  return form == HETCOMM_PLAN_TEXT ? pipeline::outline_text(plan.value(), views.value())
                                   : pipeline::outline_json(plan.value(), views.value());
}

std::string_view text_or_empty(const char* text) { return text != nullptr ? text : ""; }

Result<std::vector<uint64_t>> rates_of(const char* given,
                                       std::span<const hetcomm_link_ends_t> transfers) {
  Result<std::string_view> text = document(given, "model", topology::kMaxLinkModelBytes);
  if (!text.ok()) return text.status();
  Result<topology::LinkModel> model = topology::parse_link_model(text.value());
  if (!model.ok()) return model.status().annotate("model");
  std::vector<topology::Route> routes;
  routes.reserve(transfers.size());
  for (const hetcomm_link_ends_t& ends : transfers) {
    if (ends.from_host == nullptr || ends.to_host == nullptr) {
      return Status(Code::kInvalidArgument,
                    fmt::format("a host of transfers[{}] is NULL", routes.size()));
    }
    Result<topology::Route> found =
        topology::route(model.value(), {ends.from_host, text_or_empty(ends.from_nic)},
                        {ends.to_host, text_or_empty(ends.to_nic)});
    if (!found.ok()) return found.status();
    routes.push_back(std::move(found).value());
  }
  return topology::rates(model.value(), routes);
}

// Calls make() and writes the text that it returns to the caller's |out_text|.
template <typename Make>
hetcomm_status_t give_text(Make&& make, size_t capacity, char* out_text,
                           size_t* out_size) noexcept {
  return capi::guard([&]() -> Status {
    Result<std::string> text = make();
    if (!text.ok()) return text.status();
    return capi::write_text(text.value(), capacity, out_text, out_size);
  });
}

}  // namespace

extern "C" {

const char* hetcomm_plan_version_string(void) noexcept { return HETCOMM_PLAN_VERSION_TEXT; }

const char* hetcomm_plan_last_error(void) noexcept { return capi::last_error_text(); }

hetcomm_status_t hetcomm_links_infer(const char* measurements, int32_t form, size_t capacity,
                                     char* out_text, size_t* out_size) noexcept {
  return give_text([&] { return infer_links(measurements, form); }, capacity, out_text, out_size);
}

hetcomm_status_t hetcomm_links_draw(const char* model, int32_t form, size_t capacity,
                                    char* out_text, size_t* out_size) noexcept {
  return give_text([&] { return draw_links(model, form); }, capacity, out_text, out_size);
}

hetcomm_status_t hetcomm_links_rates(const char* model, size_t count,
                                     const hetcomm_link_ends_t* transfers,
                                     uint64_t* out_bytes_per_s) noexcept {
  return capi::guard([&]() -> Status {
    constexpr size_t kMax = 65536;
    if (count > kMax) return {Code::kInvalidArgument, "count is above 65536"};
    if (count > 0) {
      HETCOMM_REQUIRE(transfers);
      HETCOMM_REQUIRE(out_bytes_per_s);
    }
    Result<std::vector<uint64_t>> rates = rates_of(model, std::span(transfers, count));
    if (!rates.ok()) return rates.status();
    std::copy(rates->begin(), rates->end(), out_bytes_per_s);
    return {};
  });
}

hetcomm_status_t hetcomm_machine_draw(const char* machine, int32_t form, size_t capacity,
                                      char* out_text, size_t* out_size) noexcept {
  return give_text([&] { return draw_machine(machine, form); }, capacity, out_text, out_size);
}

hetcomm_status_t hetcomm_draft_layout(const char* layout, int32_t form, size_t capacity,
                                      char* out_text, size_t* out_size) noexcept {
  return give_text([&] { return draft_layout(layout, form); }, capacity, out_text, out_size);
}

hetcomm_status_t hetcomm_draft_reshard(const char* question, int32_t form, size_t capacity,
                                       char* out_text, size_t* out_size) noexcept {
  return give_text([&] { return draft_reshard(question, form); }, capacity, out_text, out_size);
}

hetcomm_status_t hetcomm_draft_schedule(const char* question, int32_t form, size_t capacity,
                                        char* out_text, size_t* out_size) noexcept {
  return give_text([&] { return draft_schedule(question, form); }, capacity, out_text, out_size);
}

hetcomm_status_t hetcomm_draft_pipeline(const char* plan, int32_t form, size_t capacity,
                                        char* out_text, size_t* out_size) noexcept {
  return give_text([&] { return draft_pipeline(plan, form); }, capacity, out_text, out_size);
}

hetcomm_status_t hetcomm_draft_forecast(const char* question, int32_t form, size_t capacity,
                                        char* out_text, size_t* out_size) noexcept {
  return give_text([&] { return draft_forecast(question, form); }, capacity, out_text, out_size);
}

hetcomm_status_t hetcomm_draft_draw(const char* plan, int32_t form, size_t capacity, char* out_text,
                                    size_t* out_size) noexcept {
  return give_text([&] { return draw_plan(plan, form); }, capacity, out_text, out_size);
}

}  // extern "C"
