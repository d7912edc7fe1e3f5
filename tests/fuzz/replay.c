/* replay.c - runs a fuzz entry over the files of a folder, without a fuzzer.
 *
 * So that what fuzzing once found stays tested wherever the tests run. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f)
        return 0;
    size_t size = 0, capacity = 1 << 20;
    uint8_t *data = malloc(capacity);
    while (data && !feof(f) && !ferror(f)) {
        size += fread(data + size, 1, capacity - size, f);
        if (size == capacity)
            data = realloc(data, capacity *= 2);
    }
    fclose(f);
    if (!data)
        return 0;
    /* An exact copy, so that a read after the end is seen. */
    uint8_t *exact = malloc(size ? size : 1);
    for (size_t i = 0; exact && i < size; i++)
        exact[i] = data[i];
    free(data);
    if (exact)
        LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    return 1;
}

int main(int argc, char **argv) {
    int passed = 0;
    DIR *folder = argc > 1 ? opendir(argv[1]) : NULL;
    if (!folder) {
        printf("cannot open the corpus %s\n", argc > 1 ? argv[1] : "");
        return 1;
    }
    for (struct dirent *e; (e = readdir(folder));) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        if (e->d_name[0] != '.')
            passed += replay(path);
    }
    closedir(folder);
    printf("%d passed, %d failed\n", passed, passed == 0);
    return passed == 0;
}
