"""Functions of a model, on a cluster: each call in a sandbox of its own, on the node that Ray chooses."""

import offleash_ray
import ray

ray.init()


@offleash_ray.sandboxed(num_cpus=1, memory=256 << 20, timeout=30, sandbox={"allow_internet_access": False})
def solve(number):
    return sum(range(number))


print(ray.get([solve.remote(number) for number in (10, 100, 1000)]))

with offleash_ray.SandboxPool(2, sandbox={"allow_internet_access": False}) as pool:
    print([result.exit_code for result in pool.run("echo prepared > /tmp/state")])
    print(list(pool.map(lambda word: word.upper(), ["a", "b", "c"])))
