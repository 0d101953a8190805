import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Notices that a message is missing or out of order, by the header Sluicebox-Chain. chain/chain.go has the reasons. */
public final class Chains {
    /** What the header of a message says. */
    public enum Verdict { NONE, FOLLOWS, REPEAT, JOINED, GAP }

    private static final int MAX_CHAINS = 100_000; // a chain that was forgotten is joined again
    private static final int MAX_HASHES = 10_000; // of a chain; more than any request has

    private final Map<String, State> chains = new LinkedHashMap<>(16, 0.75f, true) {
        @Override
        protected boolean removeEldestEntry(Map.Entry<String, State> eldest) {
            return size() > MAX_CHAINS;
        }
    };

    /** Takes the header of a message that is accepted, before the answer. All messages of a group must come here. */
    public synchronized Verdict accept(String header) {
        String[] part = header == null ? new String[0] : header.split(";", -1);
        if (part.length != 4 || !part[1].matches("[0-9]{1,18}")) return Verdict.NONE;
        long accepted = Long.parseLong(part[1]);
        State state = chains.get(part[0]);
        if (state != null) return state.accept(accepted, part[2], part[3]);
        boolean first = accepted == 0 && part[2].equals("0");
        chains.put(part[0], new State(accepted, !first, new ArrayList<>(List.of(part[2], part[3]))));
        return first ? Verdict.FOLLOWS : Verdict.JOINED;
    }

    private static final class State {
        private long accepted;
        private boolean joined;
        private List<String> known;

        State(long accepted, boolean joined, List<String> known) {
            this.accepted = accepted;
            this.joined = joined;
            this.known = known;
        }

        Verdict accept(long count, String before, String hash) {
            if (count < accepted || count == accepted && known.contains(hash)) return Verdict.REPEAT;
            Verdict verdict = Verdict.GAP;
            if (known.contains(before)) {
                verdict = Verdict.FOLLOWS;
                if (count > accepted) {
                    known = new ArrayList<>(List.of(before));
                    joined = false;
                }
            } else if (joined) {
                verdict = Verdict.JOINED;
                if (count > accepted) known = new ArrayList<>(List.of(before));
            } else {
                known.add(before);
            }
            accepted = count;
            known.add(hash);
            if (known.size() > MAX_HASHES) known.subList(0, MAX_HASHES / 2).clear();
            return verdict;
        }
    }
}
