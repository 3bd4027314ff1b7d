/* placeholder: replaced with the first kernels in the next commit */
int kvtui_native_version(void) { return 1; }
