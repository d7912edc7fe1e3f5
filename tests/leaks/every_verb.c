/* every_verb.c - the program's main, once for every command line of a file.
 *
 * Leak detection takes seconds at every exit on some machines: so all verbs run in one process,
 * which is looked through once, when it ends. A line is the expected exit status and the arguments,
 * each after a tab. Results go to descriptor 3. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int sluice_main(int argc, char **argv); /* main of src/cmd/main.c */

int main(int argc, char **argv) {
    FILE *lines = argc == 2 ? fopen(argv[1], "r") : NULL, *results = fdopen(3, "w");
    if (!lines || !results) {
        fprintf(stderr, "usage: every_verb FILE 3>RESULTS\n");
        return 2;
    }
    int passed = 0, failed = 0;
    char line[4096];
    while (fgets(line, sizeof line, lines)) {
        line[strcspn(line, "\n")] = 0;
        char *words[64] = {"sluice"}, *rest = line, *expected = strsep(&rest, "\t");
        int n = 1;
        while (rest && n < 63)
            words[n++] = strsep(&rest, "\t");
        clearerr(stdin);
        int status = sluice_main(n, words);
        passed += status == atoi(expected);
        failed += status != atoi(expected);
        if (status != atoi(expected))
            fprintf(results, "FAILED %s %s: exit status %d, expected %s\n", words[1],
                    n > 2 ? words[2] : "", status, expected);
    }
    fprintf(results, "%d passed, %d failed\n", passed, failed);
    fclose(results);
    fclose(lines);
    return failed > 0;
}
