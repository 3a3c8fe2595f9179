// Calls functions of libhetcomm_plan and returns their texts as strings.
#pragma once

#include <cstdint>
#include <hetcomm_plan/hetcomm_plan.h>
#include <stdexcept>
#include <string>

namespace tools {

// Thrown if libhetcomm_plan refuses a document. what() is the library's error text.
class PlanError : public std::runtime_error {
 public:
  explicit PlanError(hetcomm_status_t status)
      : std::runtime_error(hetcomm_plan_last_error()), status_(status) {}
  hetcomm_status_t status() const { return status_; }

 private:
  hetcomm_status_t status_;
};

// Returns the text that |function| produces from |document|. |form| is one of HETCOMM_PLAN_*.
// Throws PlanError if |function| fails. For a text longer than |first_size|, |function| is called
// twice.
inline std::string plan_answer(hetcomm_status_t (*function)(const char*, int32_t, size_t, char*,
                                                            size_t*),
                               const std::string& document, int32_t form,
                               size_t first_size = size_t{64} << 10) {
  size_t size = first_size;
  std::string text;
  do {
    text.resize(size);
    const hetcomm_status_t status =
        function(document.c_str(), form, text.size(), text.data(), &size);
    if (status != HETCOMM_OK) throw PlanError(status);
  } while (size > text.size());
  text.resize(size - 1);
  return text;
}

inline int32_t plan_form(const std::string& name) {
  if (name == "json") return HETCOMM_PLAN_JSON;
  return name == "svg" ? HETCOMM_PLAN_SVG : HETCOMM_PLAN_TEXT;
}

}  // namespace tools
