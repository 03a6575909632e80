"""Drive a plain loop: the code that a competent user would write in plain PyTorch, without this project.

One process, all threads, one network that is loaded anew for each client, one client after another, SGD in one kernel,
then the average. No allocator settings, no channels-last layout, no worker processes.
"""

from tests.performance.peers.work import Turns, by_hand, network_for, setup_given, weights_of


def main() -> None:
    setup = setup_given()
    turns, mean = Turns(setup, ("torch",)), weights_of(network_for(setup))
    for number in range(1, setup.rounds + 1):
        mean = by_hand(setup, number, mean)
        turns.lap(mean)


if __name__ == "__main__":
    main()
