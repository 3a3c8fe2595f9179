// Implements the C ABI of status names, versions, variables and transports (hetcomm/status.h,
// hetcomm/info.h).
#include "src/capi/guard.h"
#include "src/capi/output.h"
#include "src/capi/variables.h"
#include "src/system/config.h"

#define HETCOMM_TEXT_(x) #x
#define HETCOMM_TEXT(x) HETCOMM_TEXT_(x)

namespace {

void copy_text(std::string_view from, char* to, size_t capacity) {
  const size_t size = std::min(from.size(), capacity - 1);
  std::memcpy(to, from.data(), size);
  to[size] = '\0';
}

// Returns the meaning and the allowed values of each variable. The strings stay valid until the
// process exits.
const std::vector<std::string>& meanings() {
  static const auto* const texts = [] {
    auto* made = new std::vector<std::string>();
    for (const hetcomm::Variable* each : hetcomm::kVariables) {
      const std::string values = hetcomm::allowed_values(*each);
      made->push_back(values.empty() ? each->meaning
                                     : fmt::format("{} Values: {}.", each->meaning, values));
    }
    return made;
  }();
  return *texts;
}

}  // namespace

extern "C" {

using hetcomm::Code;
using hetcomm::Status;
namespace capi = hetcomm::capi;

const char* hetcomm_status_name(hetcomm_status_t status) noexcept {
  return hetcomm::code_name(static_cast<Code>(status));
}
const char* hetcomm_status_text(hetcomm_status_t status) noexcept {
  return hetcomm::code_text(static_cast<Code>(status));
}

const char* hetcomm_version_string(void) noexcept {
  return HETCOMM_TEXT(HETCOMM_VERSION_MAJOR) "." HETCOMM_TEXT(
      HETCOMM_VERSION_MINOR) "." HETCOMM_TEXT(HETCOMM_VERSION_PATCH);
}
uint32_t hetcomm_abi_version(void) noexcept { return HETCOMM_ABI_VERSION; }
const char* hetcomm_build_string(void) noexcept {
  return "compiler " __VERSION__
#ifdef NDEBUG
         ", optimised"
#else
         ", debug checks"
#endif
#if defined(HETCOMM_ASAN)
         ", address sanitizer"
#endif
#if defined(HETCOMM_TSAN)
         ", thread sanitizer"
#endif
      ;
}

hetcomm_status_t hetcomm_variable_describe(size_t index,
                                           hetcomm_variable_info_t* out_info) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE(out_info);
    constexpr auto& kTable = hetcomm::kVariables;
    if (index >= kTable.size()) return Status(Code::kOutOfRange, "there is no such variable");
    return capi::write_output({.struct_size = 0,
                               .name = kTable[index]->name,
                               .default_value = kTable[index]->default_value,
                               .meaning = meanings()[index].c_str()},
                              out_info);
  });
}

hetcomm_status_t hetcomm_context_variable(hetcomm_context_t* context, const char* name,
                                          const char** out_value) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(context);
    HETCOMM_REQUIRE(name);
    HETCOMM_REQUIRE(out_value);
    for (const hetcomm::Variable* each : hetcomm::kVariables) {
      if (std::string_view(name) != each->name) continue;
      *out_value = context->impl->config().shown(*each);
      return {};
    }
    return Status(Code::kNotFound, "there is no variable '" + std::string(name) +
                                       "'; hetcomm_info --variables lists them");
  });
}

hetcomm_status_t hetcomm_context_transport(hetcomm_context_t* context, size_t index,
                                           hetcomm_transport_info_t* out_info) noexcept {
  return capi::guard([&]() -> Status {
    HETCOMM_REQUIRE_HANDLE(context);
    HETCOMM_REQUIRE(out_info);
    const auto& factories = context->impl->factories();
    if (index >= factories.size()) return Status(Code::kOutOfRange, "there is no such transport");
    const Status usable = factories[index]->probe(context->impl->config());
    hetcomm_transport_info_t info{};
    copy_text(factories[index]->name(), info.name, sizeof(info.name));
    info.usable = usable.ok() ? 1 : 0;
    copy_text(usable.text(), info.reason, sizeof(info.reason));
    return capi::write_output(info, out_info);
  });
}

}  // extern "C"
