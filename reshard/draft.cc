#include "reshard/draft.h"

#include <fmt/core.h>

#include "reshard/move_plan_draw.h"
#include "reshard/move_plan_json.h"

namespace hetcomm::reshard {
namespace {

// Fails with OUT_OF_RANGE if |links| lacks a rank of |order|.
Status check_known(const TensorOrder& order, const Links& links) {
  for (const Layout* layout : {order.source.get(), order.destination.get()}) {
    for (const Part& part : layout->parts) {
      if (part.rank >= 0 && static_cast<size_t>(part.rank) < links.ranks()) continue;
      return {Code::kOutOfRange,
              fmt::format("rank {} holds a part, and the links of {} ranks are given", part.rank,
                          links.ranks())};
    }
  }
  return {};
}

std::string to_json(const std::vector<TensorOrder>& tensors, const std::vector<Choice>& choices,
                    const Links* links) {
  const bool is_list = choices.size() != 1;
  std::string text = is_list ? "[" : "";
  for (size_t i = 0; i < choices.size(); ++i) {
    const uint64_t element_bytes = size_of(tensors[i].types.destination);
    if (i > 0) text += ",\n";
    text += links != nullptr ? to_json(choices[i], element_bytes, *links)
                             : to_json(choices[i].plan, element_bytes);
  }
  return is_list ? text + "]" : text;
}

Result<std::string> draw(const std::vector<TensorOrder>& tensors,
                         const std::vector<Choice>& choices, PlanFormat format) {
  std::vector<SizedPlan> plans;
  for (size_t i = 0; i < choices.size(); ++i) {
    plans.push_back({&choices[i].plan, size_of(tensors[i].types.destination)});
  }
  if (format == PlanFormat::kSvg) return to_svg(plans);
  return to_text(plans);
}

}  // namespace

Result<std::string> draft(const std::vector<TensorOrder>& tensors, const DraftOptions& options,
                          const Links* links, PlanFormat format) {
  HETCOMM_RETURN_IF_ERROR(check(tensors, [links](const TensorOrder& order) {
    return links != nullptr ? check_known(order, *links) : Status();
  }));
  Result<std::vector<Choice>> all =
      make_plans(tensors_of(tensors), wishes_of(tensors, options, links));
  if (!all.ok()) return all.status();
  if (options.prove) HETCOMM_RETURN_IF_ERROR(prove_all(all.value()));
  return format == PlanFormat::kJson ? to_json(tensors, all.value(), links)
                                     : draw(tensors, all.value(), format);
}

}  // namespace hetcomm::reshard
