// The library finds the entries of libibverbs by dlsym. This program puts its own dlsym in front of
// the system's; it replaces two entries with versions that record the queue pairs.
#include "tests/e2e/failover/queue_pairs.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <infiniband/verbs.h>
#include <mutex>
#include <vector>

namespace hetcomm::test {
namespace {

struct Known {
  std::mutex mutex;
  std::vector<ibv_qp*> pairs;
  decltype(&ibv_create_qp) create = nullptr;
  decltype(&ibv_destroy_qp) destroy = nullptr;
  decltype(&ibv_modify_qp) modify = nullptr;
};
Known& known() {
  static auto* const result = new Known();
  return *result;
}

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  ibv_qp* pair = known().create(pd, attributes);
  if (pair == nullptr) return nullptr;
  const std::lock_guard lock(known().mutex);
  known().pairs.push_back(pair);
  return pair;
}

int destroy_qp(ibv_qp* pair) {
  const std::lock_guard lock(known().mutex);
  std::erase(known().pairs, pair);
  return known().destroy(pair);
}

using Find = void* (*)(void*, const char*);
Find system_dlsym() {
  for (const char* version : {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"}) {
    if (void* found = dlvsym(RTLD_NEXT, "dlsym", version); found != nullptr) {
      return reinterpret_cast<Find>(found);
    }
  }
  return nullptr;
}

template <typename Function>
void* put_between(void* found, Function* original, Function mine) {
  if (found == nullptr) return nullptr;
  *original = reinterpret_cast<Function>(found);
  return reinterpret_cast<void*>(mine);
}

}  // namespace

uint32_t break_queue_pair(uint32_t choice) {
  const std::lock_guard lock(known().mutex);
  const auto count = static_cast<uint32_t>(known().pairs.size());
  if (count == 0 || known().modify == nullptr) return 0;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  (void)known().modify(known().pairs[choice % count], &attributes, IBV_QP_STATE);
  return count;
}

}  // namespace hetcomm::test

extern "C" __attribute__((visibility("default"))) void* dlsym(void* library,
                                                              const char* name) noexcept {
  using hetcomm::test::known;
  static const hetcomm::test::Find find = hetcomm::test::system_dlsym();
  if (find == nullptr) return nullptr;
  void* const found = find(library, name);
  if (std::strcmp(name, "ibv_create_qp") == 0) {
    return hetcomm::test::put_between(found, &known().create, &hetcomm::test::create_qp);
  }
  if (std::strcmp(name, "ibv_destroy_qp") == 0) {
    return hetcomm::test::put_between(found, &known().destroy, &hetcomm::test::destroy_qp);
  }
  if (std::strcmp(name, "ibv_modify_qp") == 0) {
    known().modify = reinterpret_cast<decltype(known().modify)>(found);
  }
  return found;
}
