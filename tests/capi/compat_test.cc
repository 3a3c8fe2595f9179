// Former names of functions (hetcomm/compat.h):
//   - a program that uses them compiles, and calls the current functions;
//   - a program that was linked with them finds them in the library, where they do the same.
#include <dlfcn.h>

#include <gtest/gtest.h>

#include <hetcomm/compat.h>

namespace {

TEST(FormerNames, ReferToTheCurrentFunctions) {
  EXPECT_EQ(&hetcomm_device_get_info, &hetcomm_device_info);
  EXPECT_EQ(&hetcomm_memory_free, &hetcomm_memory_destroy);
  EXPECT_EQ(&hetcomm_remote_memory_get_info, &hetcomm_remote_memory_info);
  EXPECT_EQ(&hetcomm_remote_memory_release, &hetcomm_remote_memory_destroy);
  EXPECT_EQ(&hetcomm_request_release, &hetcomm_request_destroy);
  EXPECT_EQ(&hetcomm_reshard_get_facts, &hetcomm_reshard_facts);
  EXPECT_EQ(&hetcomm_stream_release, &hetcomm_stream_destroy);
}

// Calls the function that the library exports as |name|, without the renaming of compat.h.
template <typename... Arguments>
hetcomm_status_t call(const char* name, Arguments... arguments) {
  using Function = hetcomm_status_t (*)(Arguments...);
  const auto function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  if (function == nullptr) return HETCOMM_INTERNAL;
  return function(arguments...);
}

TEST(FormerNames, RemainCallableAsExportedSymbols) {
  hetcomm_context_t* context = nullptr;
  ASSERT_EQ(hetcomm_context_create(nullptr, &context), HETCOMM_OK) << hetcomm_last_error();
  hetcomm_device_info_t info{};
  info.struct_size = sizeof(info);
  EXPECT_EQ(call("hetcomm_device_get_info", context, int32_t{0}, &info), HETCOMM_OK);
  EXPECT_STREQ(info.kind, "host");
  hetcomm_memory_t* memory = nullptr;
  ASSERT_EQ(hetcomm_memory_allocate(context, 0, 64, &memory), HETCOMM_OK);
  EXPECT_EQ(hetcomm_context_destroy(context), HETCOMM_BUSY);
  EXPECT_EQ(call("hetcomm_memory_free", memory), HETCOMM_OK);
  EXPECT_EQ(call("hetcomm_request_release", static_cast<hetcomm_request_t*>(nullptr)), HETCOMM_OK);
  EXPECT_EQ(call("hetcomm_remote_memory_release", static_cast<hetcomm_remote_memory_t*>(nullptr)),
            HETCOMM_OK);
  EXPECT_EQ(call("hetcomm_stream_release", static_cast<hetcomm_stream_t*>(nullptr)), HETCOMM_OK);
  EXPECT_EQ(call("hetcomm_reshard_get_facts", static_cast<hetcomm_reshard_t*>(nullptr),
                 static_cast<hetcomm_reshard_facts_t*>(nullptr)),
            HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(
      call("hetcomm_remote_memory_get_info", static_cast<const hetcomm_remote_memory_t*>(nullptr),
           static_cast<hetcomm_remote_memory_info_t*>(nullptr)),
      HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_context_destroy(context), HETCOMM_OK);
}

}  // namespace
