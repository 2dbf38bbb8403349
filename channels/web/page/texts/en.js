// English. The other languages have the same texts; the type checker and a test compare them.

export default {
  common: {
    bytes: "{size} bytes",
    justNow: "just now",
    cancel: "Cancel",
    copy: "Copy",
    copied: "Copied",
    selected: "Selected",
    copyCode: "Copy this code",
    unreachable: "Can't reach Gatehouse. Try again in a moment.",
    theme: "Switch between light and dark",
    signOut: "Sign out",
    settings: "Settings",
    skip: "Skip to the message box",
  },

  signIn: {
    title: "Sign in to Gatehouse",
    how: "Open the link that `gatehouse run` printed, or run `gatehouse link` for a new one.",
    once: "Each link works once and signs in the browser that opens it.",
    tryAgain: "Try again",
    linkIsUsed: "This link has already been used, or it has expired. Please get a new one.",
    stillSignedIn: "Can't reach Gatehouse, so you're still signed in. Try again.",
  },

  chat: {
    // The side bar.
    sideBar: "Side bar",
    closeList: "Close the list of conversations",
    showList: "Show the list of conversations",
    newChat: "New chat",
    conversations: "Conversations",
    noConversations: "Your conversations will appear here.",
    signedInAs: "Signed in as {name}",
    newConversation: "New conversation",
    session: "Session {number}",
    messages: { one: "{count} message", other: "{count} messages" },
    empty: "Empty",
    newAnswer: "New answer",

    // The log.
    messagesRegion: "Messages",
    conversation: "Conversation",
    connected: "Connected",
    connecting: "Connecting…",
    working: "Working on an answer",
    toEnd: "Go to the newest message",
    sending: "Sending",
    sentLater: "Will be sent after reconnecting",
    stoppedByYou: "Not answered: you stopped it",
    sendAgain: "Send again",
    tryAgain: "Try again",
    details: "Details",

    // The welcome.
    welcome: "What's on your mind?",
    welcomeHint: "Ask anything, or type `/` to see the commands.",
    setup: "No language model is connected yet, so a few built-in rules answer. To connect one, run `gatehouse setup` in a terminal.",
    sayWhat: "What can you do?",
    sayTime: "What time is it?",

    // The message box.
    message: "Message",
    write: "Write a message",
    send: "Send",
    stop: "Stop the answer",
    addFiles: "Add files",
    filesToSend: "Files to send",
    commands: "Commands",
    hint: "`Enter` sends, `Shift` + `Enter` starts a new line",
    removeFile: "Remove {name}",
    file: "file",
    stillUploading: "A file is still uploading. Send the message when it's done.",
    tooLong: "This message is too long. Cut out a part and paste it again, and it's sent as a file.",
    pastedAsFile: "The pasted text is too long for a message, so it's attached as a file.",
    uploadFailed: "{name} couldn't be uploaded. Try again.",
    uploadRefused: "{name}: {problem}",
  },
};
