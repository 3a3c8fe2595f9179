// Bad input to bootstraps: arguments, missing or misbehaving callbacks, and the environment.
#include <cstdlib>
#include <string>

#include "tests/capi/bad_input.h"

namespace hetcomm_test {
namespace {

using Options = hetcomm_bootstrap_options_t;

TEST_F(BadInput, BootstrapFromInvalidCallbacksIsRefused) {
  const auto create = [&](const Options& options, Outputs& out) {
    return hetcomm_bootstrap_create_from_callbacks(context(), &options,
                                                   out.first<hetcomm_bootstrap_t*>());
  };
  const auto with = [&](const std::function<void(Options&)>& change) {
    return [&, change](Outputs& out) {
      Options options = local_bootstrap_options(store_, 0, 1);
      change(options);
      return create(options, out);
    };
  };
  const Options good = local_bootstrap_options(store_, 0, 1);
  expect_refused({
      {"no context", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_bootstrap_create_from_callbacks(nullptr, &good,
                                                        out.first<hetcomm_bootstrap_t*>());
       }},
      {"no options", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_bootstrap_create_from_callbacks(context(), nullptr,
                                                        out.first<hetcomm_bootstrap_t*>());
       }},
      {"no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) {
         return hetcomm_bootstrap_create_from_callbacks(context(), &good, nullptr);
       }},
      {"struct_size 0", HETCOMM_INVALID_ARGUMENT, with([](Options& o) { o.struct_size = 0; })},
      {"struct_size 1", HETCOMM_INVALID_ARGUMENT, with([](Options& o) { o.struct_size = 1; })},
      {"size 0", kAnyFailure, with([](Options& o) { o.size = 0; })},
      {"size -1", kAnyFailure, with([](Options& o) { o.size = -1; })},
      {"rank -1", kAnyFailure, with([](Options& o) { o.rank = -1; })},
      {"rank = size", kAnyFailure, with([](Options& o) { o.rank = 1; })},
      {"rank INT_MAX", kAnyFailure, with([](Options& o) { o.rank = INT_MAX; })},
      {"no callbacks", HETCOMM_INVALID_ARGUMENT, with([](Options& o) {
         o.size = 2;  // a single rank needs none
         o.put = nullptr;
         o.get = nullptr;
       })},
      {"put without get", HETCOMM_INVALID_ARGUMENT, with([](Options& o) { o.get = nullptr; })},
      {"get without put", HETCOMM_INVALID_ARGUMENT, with([](Options& o) { o.put = nullptr; })},
      {"secret without bytes", HETCOMM_INVALID_ARGUMENT,
       with([](Options& o) { o.secret_size = 16; })},
  });
}

TEST_F(BadInput, BootstrapRankQueryWithNullPointersIsRefused) {
  expect_refused({
      {"no bootstrap", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_bootstrap_rank(nullptr, out.first<int32_t>(), out.second<int32_t>());
       }},
      {"no rank", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_bootstrap_rank(bootstrap(), nullptr, out.second<int32_t>());
       }},
      {"no size", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_bootstrap_rank(bootstrap(), out.first<int32_t>(), nullptr);
       }},
  });
  hetcomm_bootstrap_destroy(nullptr);
}

// Callbacks fail, return wrong sizes or never answer; creation still ends with a status.
TEST_F(BadInput, MisbehavingCallbacksFailCommunicatorCreation) {
  const auto create = [&](Options options, Outputs& out) {
    options.size = 2;  // forces a request for the other rank's values
    hetcomm_bootstrap_t* bootstrap = nullptr;
    EXPECT_EQ(hetcomm_bootstrap_create_from_callbacks(context(), &options, &bootstrap), HETCOMM_OK)
        << hetcomm_last_error();
    hetcomm_communicator_options_t communicator_options{};
    communicator_options.struct_size = sizeof(communicator_options);
    communicator_options.name = "misbehaving";
    communicator_options.timeout_ns = 300'000'000;
    const hetcomm_status_t status = hetcomm_communicator_create(
        context(), bootstrap, &communicator_options, out.first<hetcomm_communicator_t*>());
    const std::string error = hetcomm_last_error();
    hetcomm_bootstrap_destroy(bootstrap);
    EXPECT_NE(error, "");
    return status;
  };
  const Options good = local_bootstrap_options(store_, 0, 2);
  const auto run = [&](const char* what, const Options& options) {
    Outputs out;
    EXPECT_LT(create(options, out), 0) << what;
    EXPECT_TRUE(out.untouched()) << what;
  };
  Options options = good;
  options.put = [](void*, const char*, const void*, size_t) -> hetcomm_status_t {
    return HETCOMM_INTERNAL;
  };
  run("put fails", options);
  options = good;
  options.get = [](void*, const char*, void*, size_t*, uint64_t) -> hetcomm_status_t {
    return HETCOMM_PEER_LOST;
  };
  run("get fails", options);
  options = good;
  options.get = [](void*, const char*, void*, size_t* inout_size, uint64_t) -> hetcomm_status_t {
    *inout_size = SIZE_MAX;
    return HETCOMM_OK;
  };
  run("get claims a huge value", options);
  options = good;
  options.get = [](void*, const char*, void* value, size_t* inout_size,
                   uint64_t) -> hetcomm_status_t {
    std::memset(value, 0xff, *inout_size);
    return HETCOMM_OK;
  };
  run("get gives noise", options);
  options = good;
  options.get = [](void*, const char*, void*, size_t* inout_size, uint64_t) -> hetcomm_status_t {
    *inout_size = 0;
    return HETCOMM_OK;
  };
  run("get gives nothing", options);
  run("the other rank never comes", good);
}

class Environment {
 public:
  explicit Environment(const std::vector<std::pair<const char*, const char*>>& values) {
    for (const char* const name : kNames) unsetenv(name);
    for (const auto& [name, value] : values) setenv(name, value, 1);
  }
  ~Environment() {
    for (const char* const name : kNames) unsetenv(name);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static constexpr const char* kNames[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
};

TEST_F(BadInput, BootstrapFromAnInvalidEnvironmentIsRefused) {
  const struct {
    std::vector<std::pair<const char*, const char*>> values;
    const char* named;
  } cases[] = {
      {{}, "RANK"},
      {{{"RANK", "0"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1234"}}, "WORLD_SIZE"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1234"}}, "MASTER_ADDR"},
      {{{"RANK", "x"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}},
       "RANK"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}},
       "RANK"},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}},
       "RANK"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}},
       "WORLD_SIZE"},
      {{{"RANK", "0"},
        {"WORLD_SIZE", "99999999999"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", "1"}},
       "WORLD_SIZE"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "77777"}},
       "MASTER_PORT"},
  };
  for (const auto& [values, named] : cases) {
    const Environment environment(values);
    expect_refused({{named, kAnyFailure, [&](Outputs& out) {
                       return hetcomm_bootstrap_create_from_environment(
                           context(), out.first<hetcomm_bootstrap_t*>());
                     }}});
    EXPECT_NE(std::string(hetcomm_last_error()).find(named), std::string::npos)
        << hetcomm_last_error();
  }
  expect_refused({
      {"no context", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_bootstrap_create_from_environment(nullptr,
                                                          out.first<hetcomm_bootstrap_t*>());
       }},
      {"no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_bootstrap_create_from_environment(context(), nullptr); }},
  });
}

}  // namespace
}  // namespace hetcomm_test
