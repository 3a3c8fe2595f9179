// Creates the text of the manual page.
#pragma once

#include <string>

namespace hetcomm_info {

std::string help_text(size_t width);

}  // namespace hetcomm_info
