#include "src/system/privilege.h"

#include <sys/auxv.h>

namespace hetcomm {

Caller caller_of_process() {
  return getauxval(AT_SECURE) != 0 ? Caller::kStranger : Caller::kOwner;
}

}  // namespace hetcomm
