/* A user's program: prints the version of the library that it runs with, and the name of status 0.
 */
#include <stdio.h>
#include <string.h>

#include <hetcomm/hetcomm.h>

int main(void) {
  const char* version = hetcomm_version_string();
  const char* name = hetcomm_status_name(0);
  if (version == NULL || strlen(version) == 0 || name == NULL || strlen(name) == 0) return 1;
  printf("%s %s\n", version, name);
  return 0;
}
